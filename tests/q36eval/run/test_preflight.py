"""Everything that is wrong with a request is reported at once, before any work, and each problem has a code."""

import shutil
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.targets import load_family
from q36eval.checkpoints import load_tokenizer
from q36eval.config import Family, Paths
from q36eval.config.family import OwnTemplate
from q36eval.engines import EngineOptions
from q36eval.errors import UsageError
from q36eval.evals.probe import EvalsProbe
from q36eval.gate import Policy
from q36eval.gate.policy_file import read_policy
from q36eval.kl.corpus import load_corpus
from q36eval.kl.probe import KLProbe
from q36eval.probes import Digest, Sink, WorkItem
from q36eval.run.items import Work
from q36eval.run.preflight import (
    Problem,
    RefusedError,
    crowded,
    prepare,
    problems_after_capture,
    problems_of_plan,
    refuse,
)
from q36eval.run.reference import local_reference
from q36eval.run.request import Request, Target
from q36eval.run.rounds import plan_probes
from tests import commands
from tests.app.weights_gates import SKIPPING
from tests.commands import q36eval
from tests.evals.small_suite import ROOT, write_small_suite
from tests.q36eval.gate.evidence import only
from tests.raising import failing, raises
from tests.small_corpus import write_corpus

SANDBOX = ROOT / "data" / "sandbox"


def codes(stderr: str) -> list[str]:
    return [line.rpartition("[")[2] for line in stderr.splitlines() if line.startswith("q36eval: ")]


def test_unknown_names_are_refused_at_once_and_nothing_else_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("q36eval.run.preflight.declared_for", failing(AssertionError("the policy was looked at")))
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
    found = prepare(request, paths).problems
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


# -- a disk that is nearly full is told before a gate begins, one that is too small refused, both with figures

Usage = namedtuple("Usage", "total used free")
GB = 10**9


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the system says of every disk."""

    def set_to(used: int, free: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(used + free + GB, used, free))

    return set_to


def test_figures_of_a_full_one_and_none_of_a_roomy_one(tmp_path: Path, disk: Any) -> None:
    disk(94 * GB, 6 * GB)
    assert crowded([tmp_path]) == []
    disk(95 * GB, 5 * GB)
    (problem,) = crowded([tmp_path / "not" / "there", tmp_path])
    assert "95 % full (5.00 GB are free)" in problem.message
    assert not problem.blocks
    disk(10 * GB, 0)
    (problem,) = crowded([tmp_path])
    assert (problem.code, problem.blocks) == ("disk-full", True)


def test_a_gate_says_so_before_it_begins(tmp_path: Path, disk: Any) -> None:
    disk(99 * GB, GB)
    done = commands.q36eval("gate", "--branch", "bf16", *SKIPPING, state=tmp_path)
    assert done.returncode == 3
    assert done.stderr.index("99 % full") < done.stderr.index("inspecting")


def test_a_gate_refuses_a_capture_that_has_no_room(tmp_path: Path, disk: Any) -> None:
    disk(99 * GB, 5_000_000)  # the sandbox's states take more
    branch = Target("fp8-head", ROOT / "data" / "sandbox" / "fp8-head")
    reference = local_reference(ROOT / "data" / "sandbox" / "bf16", tmp_path, EngineOptions())
    request = Request(load_family("sandbox", Paths.default()), branch, None, "sandbox", None)
    probe = KLProbe(load_corpus(ROOT / "data" / "corpus" / "sandbox"))
    works = plan_probes([probe], load_tokenizer(branch.folder), Sink())
    (problem,) = problems_of_plan(None, works, request, reference, generates=True)
    assert (problem.code, problem.blocks) == ("disk-room", True)
    assert "5 MB are free" in problem.message


# -- a policy is refused where a branch that is the reference would not pass, and nowhere else

COUNTS = {
    **{f"mmlu{kind}/{name}.jsonl": 10 for kind in ("", "_dev") for name in ("geology", "law", "botany", "music")},
    "perplexity/czech.jsonl": 4,
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Forty questions and a few documents."""
    probe = EvalsProbe(write_small_suite(tmp_path_factory.mktemp("suite"), COUNTS, block_items=20))
    return Work(probe, probe.plan(load_tokenizer(ROOT / "data" / "sandbox" / "bf16")))


def answered(item: WorkItem) -> Digest:
    """The reference has every question right."""
    if item.task == "mmlu":
        responses = [(-1.0, True), (-2.0, False), (-3.0, False), (-4.0, False)]
        return Digest(values={"responses": responses, "metrics": {"acc": 1.0}})
    figures = {"word_perplexity": [-500.0, 100], "byte_perplexity": [-500.0, 700], "bits_per_byte": [-500.0, 700]}
    return Digest(values={"responses": [-500.0], "metrics": figures})


def policy(metric: str, part: str, kind: str, value: float) -> Policy:
    return only(kind, value, id="one", probe="evals", metric=metric, slice=part)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("accuracy", "mmlu", "min_recovery", 0.99), ("margin-not-shown", "40 scored")),
        (("accuracy", "mmlu/law", "min_recovery", 0.8), ("margin-not-shown", "10 scored")),
        (("accuracy", "mmlu", "max_increase", 0.0), ("margin-not-shown",)),
        (("answers_changed", "mmlu", "max_value", 0.001), ("margin-not-shown",)),
        (("perplexity", "all", "min_retention", 0.9), ("margin-not-shown", "requires 30")),
        (("accuracy", "mmlu", "max_value", 0.5), ("margin-not-shown", "max_value")),
        (("accuracy", "mmlu", "min_recovery", 0.7), ()),
        (("accuracy", "mmlu", "max_increase", 0.3), ()),
        (("items_lost", "mmlu", "max_count", 0), ()),
        (("answers_changed", "mmlu", "max_value", 0.3), ()),
    ],
)
def test_what_the_reference_itself_would_not_pass_is_refused_and_nothing_else(
    work: Work, asked: Any, expected: tuple[str, ...]
) -> None:
    answers = {item.key: answered(item) for item in work.items}
    with raises(UsageError, *expected) if expected else nullcontext():
        refuse(problems_after_capture(policy(*asked), work, answers.keys(), answers, []))


def test_neither_an_advisory_criterion_nor_a_reference_that_errored_is_refused(work: Work) -> None:
    """That much of the reference could not be measured is what the verdict must say."""
    answers = {item.key: answered(item) for item in work.items}
    narrow = policy("accuracy", "mmlu", "min_recovery", 0.99).criteria[0]
    wide = policy("accuracy", "mmlu", "min_recovery", 0.7).criteria[0].model_copy(update={"id": "two"})
    both = Policy(name="test", criteria=(narrow.model_copy(update={"tier": "advisory"}), wide))
    refuse(problems_after_capture(both, work, answers.keys(), answers, []))
    refuse(problems_after_capture(policy("accuracy", "mmlu", "min_recovery", 0.99), work, answers.keys(), {}, []))
