"""A scheme's figure set from accepted runs of others: never the candidate's, never too few, with who, what and when."""

from datetime import date
from pathlib import Path

import pytest

from q36eval.app.policies.calibrating import Calibration, as_policy_file, write_policy
from q36eval.app.policies.scheme_calibrating import Wanted, scheme_calibration
from q36eval.errors import UsageError
from q36eval.gate import Policy
from q36eval.gate.margins import QUANTIZED_TENSORS, margins_for
from q36eval.gate.policy_file import read_policy
from q36eval.records import Measurement, ProbeName
from q36eval.stats import _bootstrap
from tests.app.policies.test_calibrating import SANDBOX, State, accuracy, divergence, identity, policy
from tests.q36eval.gate.evidence import census

NVFP4 = Wanted("NVFP4", "mine", "eva", date(2030, 5, 1))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setattr(_bootstrap, "RESAMPLES", 999)  # coarser bounds of the same kind, ten times as fast
    return State(tmp_path)


def measured(kl: float, **tensors: int) -> list[Measurement]:
    """A divergence, some answers, and how many tensors the weights probe found of each scheme."""
    told = {"all": sum(tensors.values()), **tensors}
    weights = [census(ProbeName.WEIGHTS, QUANTIZED_TENSORS, count, name) for name, count in told.items()]
    return [divergence(kl), *accuracy(5, 5), *weights]


def rules(ceiling: float = 0.1) -> Policy:
    return policy(mmlu=0.9, kl=ceiling)


def calibrated(state: State, wanted: Wanted = NVFP4, base: Policy | None = None) -> Calibration:
    return scheme_calibration(base or rules(), SANDBOX, state.paths, wanted)


def kl_of(found: Calibration) -> float | None:
    return next(each.new for each in found.criteria if each.id == "kl")


def test_two_others_set_the_figure_and_its_source_says_who_when_and_from_what(state: State, tmp_path: Path) -> None:
    one = state.run("theirs", measured(0.02, NVFP4=3), bless=True)
    two = state.run("others", measured(0.03, NVFP4=5), bless=True)
    found = calibrated(state)
    new = kl_of(found)
    assert new is not None
    assert 0.03 < new < 0.1
    base, out = tmp_path / "p.yaml", tmp_path / "own.yaml"
    base.write_text(rules().model_dump_json(exclude={"lineage"}), encoding="utf-8")
    write_policy(as_policy_file(found, str(base), out), out)
    kl = next(criterion for criterion in read_policy(out).criteria if criterion.id == "kl")
    (figure,) = kl.margin.schemes
    assert (figure.scheme, figure.value, kl.margin.value) == ("NVFP4", new, 0.1)
    for words in ("eva", "2030-05-01", one.id, two.id, "theirs", "others", "than mine"):
        assert words in figure.source
    assert {each.id for each in found.criteria if each.proposed} == {"kl"}  # consequences stay as they are
    nvfp4 = margins_for(read_policy(out), frozenset({"NVFP4"})).policy
    assert next(c.margin.value for c in nvfp4.criteria if c.id == "kl") == new


def test_the_candidates_own_runs_set_nothing_under_whatever_name(state: State) -> None:
    state.run("theirs", measured(0.02, NVFP4=3), bless=True)
    state.run("others", measured(0.02, NVFP4=3), bless=True)
    before = kl_of(calibrated(state))
    state.run("mine", measured(0.09, NVFP4=3), bless=True)
    alias = state.history.start_run(
        family="sandbox",
        branch="alias",
        identity=identity("mine"),
        reference_identity=identity("bf16"),
        suites={"evals": "s", "kl": "k"},
    )
    for each in measured(0.09, NVFP4=3):
        state.history.add_measurement(alias.id, each)
    state.history.finish_run(alias.id)
    found = scheme_calibration(rules(), SANDBOX, state.paths, NVFP4, (alias.id,))
    assert kl_of(found) == before
    assert {run.run.branch for run in found.runs} == {"theirs", "others"}
    assert "the candidate's own" in " ".join(found.notes)
    assert f"run {alias.id} (of the candidate's checkpoint, under the name alias)" in found.notes


@pytest.mark.parametrize(
    ("branch", "tensors", "bless"),
    [
        ("mine", {"NVFP4": 3}, True),  # the candidate's own
        ("others", {"NVFP4": 3}, False),  # nobody accepted it
        ("others", {"W4A16": 3}, True),  # another scheme
        ("others", {"NVFP4": 3, "FP8_BLOCK": 1}, True),  # a mixture
        ("theirs", {"NVFP4": 3}, True),  # the same checkpoint once more
    ],
)
def test_too_few_runs_are_refused_with_one_sentence(
    state: State, branch: str, tensors: dict[str, int], bless: bool
) -> None:
    state.run("theirs", measured(0.02, NVFP4=3), bless=True)
    state.run(branch, measured(0.02, **tensors), bless=bless)
    with pytest.raises(UsageError, match="Too few runs to set a figure for NVFP4") as refused:
        calibrated(state)
    assert "of 2 other checkpoints" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_mixture_has_a_figure_of_its_own(state: State) -> None:
    for branch in ("theirs", "others"):
        state.run(branch, measured(0.02, NVFP4=3, FP8_BLOCK=1), bless=True)
    wanted = Wanted("NVFP4+FP8_BLOCK", "mine", "eva", date(2030, 5, 1))
    found = calibrated(state, wanted)
    assert {each.scheme for each in found.criteria} == {"FP8_BLOCK + NVFP4"}
    assert kl_of(found) is not None


def test_no_figure_is_set_beyond_the_ceiling(state: State) -> None:
    for branch in ("theirs", "others"):
        state.run(branch, measured(0.02, NVFP4=3), bless=True)
    found = calibrated(state, base=rules(ceiling=0.015))
    (kl,) = [each for each in found.criteria if each.id == "kl"]
    assert (kl.change, kl.new) == ("not calibrated", None)
    assert "beyond the ceiling 0.015" in kl.why


def test_a_name_that_is_no_scheme_and_a_figure_by_nobody_are_refused(state: State) -> None:
    state.run("theirs", measured(0.02, NVFP4=3), bless=True)
    with pytest.raises(UsageError, match="there is no scheme 'main'"):
        calibrated(state, Wanted("main", "mine", "eva", date(2030, 5, 1)))
    with pytest.raises(UsageError, match="names who set it"):
        calibrated(state, Wanted("NVFP4", "mine", " ", date(2030, 5, 1)))
