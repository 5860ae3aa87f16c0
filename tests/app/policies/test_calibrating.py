"""Margins proposed from noise: from which runs, in which direction, and never wider without being asked."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from q36eval.app.policies.calibrating import (
    Calibration,
    CriterionCalibration,
    as_policy_file,
    calibration,
    write_policy,
)
from q36eval.app.policies.checking import check_policy
from q36eval.config import Family, Paths
from q36eval.errors import UsageError
from q36eval.gate import Policy, decide
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunRecord
from q36eval.records import Clusters, DeploymentIdentity, Measurement, ProbeName, Schedule
from q36eval.stats import _bootstrap
from tests.q36eval.gate.evidence import HIGHER, census, measurement

REPOSITORY = Path(__file__).parents[3]
SANDBOX = Family.load(REPOSITORY / "data" / "families" / "sandbox.yaml")
ITEMS = 1_000


def policy(mmlu: float, kl: float = 0.014) -> Policy:
    lanes = ["structured", "freeform"]
    criteria = [
        {"id": "mmlu", "probe": "evals", "metric": "accuracy", "slice": "mmlu", "lanes": lanes}
        | {"margin": {"kind": "min_recovery", "value": mmlu, "source": "a card"}},
        {"id": "kl", "probe": "kl", "metric": "kl_divergence", "lanes": lanes}
        | {"margin": {"kind": "max_value", "value": kl, "source": "a card"}},
        {"id": "flips", "probe": "canaries", "metric": "must_pass_flips", "lanes": lanes}
        | {"margin": {"kind": "max_count", "value": 0, "source": "ours"}},
        {"id": "since", "probe": "evals", "metric": "accuracy", "slice": "mmlu", "lanes": lanes, "tier": "advisory"}
        | {"margin": {"kind": "min_recovery", "value": mmlu, "against": "blessed", "source": "ours"}},
    ]
    return Policy.model_validate({"name": "p", "criteria": criteria})


def accuracy(lost: int, gained: int, scored: int = ITEMS, planned: int = ITEMS) -> list[Measurement]:
    """Of items that the reference gets 80 % right, in ten blocks; and how many there were to be asked."""
    reference = (np.arange(scored) % 5 > 0).astype(float)
    branch = reference.copy()
    branch[np.flatnonzero(reference)[:lost]] = 0.0
    branch[np.flatnonzero(reference == 0)[:gained]] = 1.0
    clusters = Clusters(
        units=(1,) * scored,
        branch=tuple(branch),
        reference=tuple(reference),
        errored=(0,) * scored,
        bounds=(0.0, 1.0),
        schedule=Schedule(largest=1, blocks=tuple(10 * i // planned for i in range(scored))),
    )
    return [
        measurement(ProbeName.EVALS, "accuracy", clusters, "paired_mean", HIGHER, "mmlu"),
        counted("items_planned", "mmlu", planned),
    ]


def divergence(nats: float) -> Measurement:
    values = tuple(100 * nats * (1 + 0.1 * (i % 5)) for i in range(120))
    clusters = Clusters(units=(100,) * 120, branch=values, errored=(0,) * 120)
    return measurement(ProbeName.KL, "kl_divergence", clusters, "mean")


def counted(metric: str, slice: str, count: float, probe: ProbeName = ProbeName.EVALS) -> Measurement:
    return census(probe, metric, count, slice, ITEMS)


def floor(nats: float) -> Measurement:
    found = counted("kl_divergence_noise_floor", "all", nats, ProbeName.KL)
    return found.model_copy(update={"unit": "nats/token", "note": "left-padding"})


def identity(weights: str) -> DeploymentIdentity:
    hashes = {"tokenizer_sha256": "t", "chat_template_sha256": "c", "engine": "e", "engine_version": "1"}
    return DeploymentIdentity(checkpoint_sha256=weights, **hashes)


class State:
    """A working state whose history holds the runs that a test writes."""

    def __init__(self, folder: Path) -> None:
        self.paths = Paths(REPOSITORY, folder)
        self.history = History.open(self.paths.history)

    def run(
        self, branch: str, found: list[Measurement], *, suite: str = "s", reference: str = "bf16", bless: bool = False
    ) -> RunRecord:
        run = self.history.start_run(
            family="sandbox",
            branch=branch,
            identity=identity(branch),
            reference_identity=identity(reference),
            suites={"evals": suite, "kl": "k"},
        )
        for each in found:
            self.history.add_measurement(run.id, each)
        run = self.history.finish_run(run.id, decide(policy(0.9), found) if bless else None)
        if bless:
            self.history.bless(run.id, "me", "good enough")
        return run

    def calibrated(
        self, rules: Policy, named: tuple[str, ...] = ()
    ) -> tuple[Calibration, dict[str, CriterionCalibration]]:
        found = calibration(rules, SANDBOX, self.paths, named)
        return found, {each.id: each for each in found.criteria}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setattr(_bootstrap, "RESAMPLES", 999)  # coarser bounds of the same kind, ten times as fast
    return State(tmp_path)


def test_a_margin_below_what_the_items_show_or_the_floor_is_named_and_widened(state: State) -> None:
    run = state.run("bf16", [*accuracy(0, 0), divergence(0.0), floor(2e-4)])
    found, by_id = state.calibrated(policy(mmlu=0.999, kl=1e-4))
    mmlu, kl = by_id["mmlu"], by_id["kl"]
    assert (mmlu.change, kl.change) == ("widen", "widen")
    assert mmlu.not_shown is not None
    assert "1,000 scored" in mmlu.not_shown
    assert mmlu.tighter_than_floor is None
    assert kl.tighter_than_floor is not None
    assert "0.0002 nats/token (left-padding)" in kl.tighter_than_floor
    assert kl.new == 2e-4
    assert run.id in mmlu.why
    # the proposal mends what it names
    mended = yaml.safe_load(as_policy_file(found, "p.yaml", None, widen=True))
    margins = {each["id"]: each["margin"]["value"] for each in mended["criteria"]}
    _, again = state.calibrated(policy(margins["mmlu"], margins["kl"]))
    assert all(each.not_shown is None and each.tighter_than_floor is None for each in again.values())
    assert {again["mmlu"].change, again["kl"].change} == {"keep"}


def test_without_an_accepted_run_no_margin_is_tightened(state: State) -> None:
    state.run("bf16", [*accuracy(0, 0), divergence(0.0), floor(1e-6)])
    _, by_id = state.calibrated(policy(mmlu=0.9))
    assert (by_id["mmlu"].change, by_id["kl"].change) == ("keep", "keep")


def test_a_blessed_run_shows_how_tight_a_margin_may_be(state: State) -> None:
    state.run("bf16", [*accuracy(0, 0), divergence(0.0)])
    blessed = state.run("main", [*accuracy(10, 10), divergence(0.002)], bless=True)
    _, by_id = state.calibrated(policy(mmlu=0.9))
    mmlu, kl = by_id["mmlu"], by_id["kl"]
    assert (mmlu.change, kl.change) == ("tighten", "tighten")
    (noise,) = [each for each in mmlu.noise if each.kind == "accepted"]
    assert noise.run == blessed.id
    # its own bound lies inside, with room for the next branch that is as good
    assert mmlu.new is not None
    assert noise.loss < noise.bound < 1 - mmlu.new < 0.1
    assert kl.new is not None
    assert 0.002 < kl.new < 0.014


def test_a_run_that_gained_by_luck_is_not_taken_to_gain_again(state: State) -> None:
    lucky = state.run("main", [*accuracy(5, 40)])
    _, by_id = state.calibrated(policy(mmlu=0.9), (lucky.id,))
    (noise,) = by_id["mmlu"].noise
    assert noise.loss < 0 < noise.bound - noise.loss < noise.needed


def test_the_reference_moved_against_itself_is_a_floor_of_its_own(state: State) -> None:
    state.run("bf16", [*accuracy(20, 20)])
    _, by_id = state.calibrated(policy(mmlu=0.995))
    assert by_id["mmlu"].change == "widen"
    assert "the reference against itself" in (by_id["mmlu"].tighter_than_floor or "")


def test_what_stopped_early_is_no_measure_of_noise(state: State) -> None:
    state.run("bf16", accuracy(0, 0, scored=300))
    _, by_id = state.calibrated(policy(mmlu=0.9))
    assert by_id["mmlu"].change == "not calibrated"
    assert "--exhaustive" in by_id["mmlu"].why


def test_a_floor_of_no_number_is_told_and_not_calculated_with(state: State) -> None:
    state.run("bf16", [divergence(0.0), floor(math.inf)])
    found, by_id = state.calibrated(policy(mmlu=0.9))
    assert by_id["kl"].change == "not calibrated"
    assert "no finite number" in by_id["kl"].why
    json.dumps(found.as_json(), allow_nan=False)


def test_check_holds_margins_against_the_floor_that_history_knows(state: State) -> None:
    sandbox = REPOSITORY / "data" / "policies" / "sandbox.yaml"
    run = state.run("main", [divergence(0.0), floor(0.01)])
    assert check_policy(sandbox, state.paths).problems == ()
    state.run("main", [divergence(0.0), floor(0.02)])
    found = check_policy(sandbox, state.paths)
    assert len(found.problems) == 1
    assert found.problems[0].startswith("kl: its margin of 0.014 nats/token lies below the noise floor of 0.02")
    assert run.id not in found.floor


def test_counts_and_what_is_held_against_the_blessed_run_are_left_alone(state: State) -> None:
    state.run("bf16", [*accuracy(0, 0), counted("must_pass_flips", "all", 2, ProbeName.CANARIES)])
    _, by_id = state.calibrated(policy(mmlu=0.9))
    assert by_id["flips"].change == "not calibrated"
    assert "the reference itself counts 2" in by_id["flips"].why
    assert by_id["since"].change == "not calibrated"


def test_other_references_and_other_items_are_left_out_and_named(state: State) -> None:
    other = state.run("old", [*accuracy(0, 0)], reference="old")
    asked = state.run("bf16", [*accuracy(50, 50), divergence(0.0)], suite="before")
    kept = state.run("bf16", [*accuracy(0, 0)])
    found, by_id = state.calibrated(policy(mmlu=0.9))
    assert [each.run for each in by_id["mmlu"].noise] == [kept.id]
    assert [each.run for each in by_id["kl"].noise] == [asked.id]
    notes = " ".join(found.notes)
    assert other.id in notes
    assert f"evals of run {asked.id}" in notes


def test_wider_margins_are_written_only_on_request_and_say_what_they_were(state: State, tmp_path: Path) -> None:
    state.run("bf16", [*accuracy(0, 0), divergence(0.0)])
    state.run("main", [*accuracy(10, 10), divergence(0.002)], bless=True)
    base = tmp_path / "p.yaml"
    base.write_text(policy(mmlu=0.999).model_dump_json(exclude={"lineage"}), encoding="utf-8")
    found, by_id = state.calibrated(read_policy(base))
    assert (by_id["mmlu"].change, by_id["kl"].change) == ("widen", "tighten")
    careful, wide = tmp_path / "sub" / "careful.yaml", tmp_path / "wide.yaml"
    careful.parent.mkdir()
    write_policy(as_policy_file(found, str(base), careful), careful)
    write_policy(as_policy_file(found, str(base), wide, "mine", widen=True), wide)
    kept, widened = read_policy(careful), read_policy(wide)
    assert (kept.criteria[0].margin.value, kept.criteria[1].margin.value) == (0.999, by_id["kl"].new)
    assert (widened.name, widened.lineage) == ("mine", ("p",))
    assert widened.criteria[0].margin.value == by_id["mmlu"].new
    assert "wider than the min_recovery 0.999 before (a card)" in widened.criteria[0].margin.source
    with pytest.raises(UsageError, match="never overwritten"):
        write_policy("name: x", wide)


def test_nothing_to_calibrate_by_says_what_to_do(state: State, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gate the reference against itself"):
        state.calibrated(policy(mmlu=0.9))
    with pytest.raises(UsageError, match="gate the reference against itself"):
        calibration(policy(mmlu=0.9), SANDBOX, Paths(REPOSITORY, tmp_path / "none"))
    with pytest.raises(UsageError, match="history holds no run yet"):
        state.calibrated(policy(mmlu=0.9), ("nope",))
