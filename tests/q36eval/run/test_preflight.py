"""Everything that is wrong with a request is reported at once, before any work, and each problem has a code."""

from pathlib import Path

import pytest

from q36eval.config import Family, Paths
from q36eval.config.family import OwnTemplate
from q36eval.gate.policy_file import read_policy
from q36eval.run import branch
from q36eval.run.preflight import Problem, RefusedError, problems, refuse
from q36eval.run.request import Request, Target
from tests.commands import q36eval
from tests.evals.small_suite import ROOT, write_small_suite
from tests.small_corpus import write_corpus

SANDBOX = ROOT / "data" / "sandbox"


def codes(stderr: str) -> list[str]:
    return [line.rpartition("[")[2] for line in stderr.splitlines() if line.startswith("q36eval: ")]


def test_unknown_names_are_refused_at_once_and_nothing_else_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_at(*_: object) -> None:
        raise AssertionError("the policy was looked at")

    monkeypatch.setattr("q36eval.run.preflight.declared_for", looked_at)
    names = ("--branch", "nowhere", "--reference", "elsewhere", "--draws", "2")
    done = q36eval("gate", *names, state=tmp_path)
    assert (done.returncode, codes(done.stderr)) == (2, ["branch-unknown]"] * 2)
    suite = q36eval("gate", "--branch", "bf16", "--suite", "nope", "--policy", "sandbox", state=tmp_path)
    assert (suite.returncode, codes(suite.stderr)) == (2, ["suite-unknown]"])


def test_data_texts_template_and_policy_are_all_looked_at(tmp_path: Path) -> None:
    """Each would have been reported alone by the first check that meets it."""
    suite = write_small_suite(tmp_path, {"mmlu/law.jsonl": 5, "mmlu_dev/law.jsonl": 5})
    (tmp_path / "data" / "mmlu" / "law.jsonl").unlink()
    paths = Paths(ROOT, tmp_path / "state")
    family = Family.load(ROOT / "data" / "families" / "sandbox.yaml")
    declared = OwnTemplate(sha256="0" * 64, source="its card")
    family.branches["fp8-head"] = family.branches["fp8-head"].model_copy(update={"chat_template": declared})
    request = Request(
        family=family,
        branch=Target("fp8-head", SANDBOX / "fp8-head"),
        reference=Target("bf16", SANDBOX / "bf16"),
        suite=str(suite),
        policy=read_policy(paths.policies / "sandbox.yaml"),
        corpus=write_corpus(tmp_path, [{"slice": "all", "text": "One text of a few words."}]),
    )
    found = problems(request, paths)
    codes = {problem.code for problem in found if problem.blocks}
    assert codes == {
        "policy-cannot-pass",
        "template-declared-differs",
        "frozen-data-incomplete",
        "slice-name-reserved",
    }
    assert not paths.captures.exists(), "nothing was computed"


def test_one_error_holds_all_that_blocks_and_no_note() -> None:
    refuse([Problem("disk-crowded", "Nearly full.", blocks=False)])
    with pytest.raises(RefusedError) as refused:
        refuse([Problem("a", "One."), Problem("b", "A note.", blocks=False), Problem("c", "Two.")])
    assert [problem.code for problem in refused.value.problems] == ["a", "c"]
    assert str(refused.value) == "One. Two."
    assert refused.value.exit_code == 2


def test_several_branches_are_refused_once_for_what_concerns_all(tmp_path: Path) -> None:
    done = q36eval("gate", "--branch", "bf16", "--branch", "fp8-head", "--draws", "2", state=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("No branch can pass") == 1


@pytest.mark.parametrize("devices", [branch.HOLD_BOTH, frozenset[str]()], ids=["both fit", "one fits"])
def test_the_two_deployments_are_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: frozenset[str]
) -> None:
    compared: list[str] = []

    def counted(name: str) -> None:
        function = getattr(branch, name)
        monkeypatch.setattr(branch, name, lambda *given, **named: compared.append(name) or function(*given, **named))

    counted("incomparable")
    counted("_check_resumed")
    monkeypatch.setattr(branch, "HOLD_BOTH", devices)
    without = ("--skip", "kl", "--skip", "evals", "--skip", "canaries")
    assert q36eval("gate", "--branch", "bf16", *without, state=tmp_path).returncode == 3
    assert sorted(compared) == ["_check_resumed", "incomparable"]
