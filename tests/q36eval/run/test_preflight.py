"""Everything that is wrong with a request is reported at once, before any work, and each problem has a code.

A policy that the texts cannot show is refused before a model is opened, and what they might show is not.
"""

import json
import shutil
from collections import namedtuple
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from q36eval.app.targets import load_family
from q36eval.checkpoints import load_tokenizer
from q36eval.config import Family, Paths
from q36eval.config.family import OwnTemplate
from q36eval.engines import EngineOptions
from q36eval.errors import UsageError
from q36eval.evals.probe import EvalsProbe
from q36eval.gate import Policy
from q36eval.gate.judgement import LEAST_CLUSTERS, effective_clusters, most_effective_clusters
from q36eval.gate.policy_file import read_policy
from q36eval.history import History
from q36eval.kl.corpus import load_corpus
from q36eval.kl.corpus_config import load_configured_corpus, load_corpus_config
from q36eval.kl.probe import KLProbe
from q36eval.probes import Digest, Sink, WorkItem
from q36eval.records import ProbeName
from q36eval.run.declared_figures import declared_of_corpus
from q36eval.run.items import Work
from q36eval.run.preflight import (
    Problem,
    RefusedError,
    crowded,
    lossless_outcomes,
    prepare,
    problems_after_capture,
    problems_of_plan,
    refuse,
)
from q36eval.run.reference import local_reference
from q36eval.run.request import Request, Target
from q36eval.run.rounds import plan_probes
from q36eval.stats import MAX_ERRORED_SHARE
from tests import commands
from tests.app.sandbox_gates import SKIPPING
from tests.commands import q36eval
from tests.evals.small_suite import FROZEN, ROOT, write_small_suite
from tests.frozen_data import write_frozen
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
    done = q36eval("gate", "--branch", "bf16", "--branch", "fp8-head", "--draws", "2", state=tmp_path, code=2)
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
    done = commands.q36eval("gate", "--branch", "bf16", *SKIPPING, state=tmp_path, code=3)
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


# -- whether the texts suffice


BF16 = ROOT / "data" / "sandbox" / "bf16"
WORDS = [
    word
    for name in ("czech", "english")
    for line in (FROZEN / f"perplexity/{name}.jsonl").read_text(encoding="utf-8").splitlines()
    for word in json.loads(line)["text"].split()
]
MARGINS = {
    "evals": {"kind": "min_retention", "value": 0.5, "source": "test"},
    "kl": {"kind": "max_value", "value": 0.1, "source": "test"},
    "weights": {"kind": "max_count", "value": 0, "source": "test"},
}


def documents(lengths: Sequence[int]) -> list[dict[str, str]]:
    """Texts of so many words each, none like another."""
    begins = [sum(lengths[:place]) for place in range(len(lengths))]
    return [
        {"cluster": f"text-{start}", "slice": "czech", "text": " ".join(WORDS[start : start + length])}
        for start, length in zip(begins, lengths, strict=True)
    ]


def suite_of(folder: Path, lengths: Sequence[int]) -> Path:
    """A suite of a perplexity over documents of so many words."""
    path = write_small_suite(folder, {"perplexity/czech.jsonl": 1})
    write_frozen(folder / "data", {"perplexity/czech.jsonl": documents(lengths)})
    return path


def corpus_of(folder: Path, count: int) -> Path:
    """A corpus of one's own with so many documents, on which the reference answers nothing itself."""
    return write_corpus(folder, documents([20] * count))


def policy_of(folder: Path, *figures: str, **settings: Any) -> str:
    """A policy file with a criterion for each `probe.metric`."""
    criteria = []
    for figure in figures:
        probe, metric = figure.split(".")
        known = {"id": metric.replace("_", "-"), "probe": probe, "metric": metric, "margin": MARGINS[probe]}
        criteria.append(known | {"lanes": ["freeform"]} | ({} if probe == "weights" else settings))
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump({"name": "few", "criteria": criteria}), encoding="utf-8")
    return str(path)


def refused(folder: Path, policy: str, suite: str = "sandbox", corpus: Path | None = None, *probes: ProbeName) -> str:
    """What the pre-flight says of too few texts; empty where they are enough."""
    family = load_family("sandbox", Paths.default())
    branch, reference = Target("fp8-head", BF16.with_name("fp8-head")), Target("bf16", BF16)
    request = Request(family, branch, reference, suite, read_policy(Path(policy)), corpus=corpus, probes=probes)
    found = prepare(request, Paths(ROOT, folder / "state")).problems
    assert not (folder / "state").exists(), "nothing was computed"
    assert {problem.code for problem in found if problem.blocks} <= {"too-few-items"}
    return " ".join(problem.message for problem in found if problem.blocks)


def test_too_few_texts_are_refused_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them at once: of the KL's texts and of the perplexities' documents, by count and by weight."""

    monkeypatch.setattr("q36eval.engines.in_process.load_model", failing(AssertionError("a model was opened")))
    suite, state = suite_of(tmp_path, [300, *[10] * 40]), tmp_path / "state"
    policy = policy_of(tmp_path, "evals.word_perplexity", "kl.kl_divergence")
    options = ("--suite", str(suite), "--corpus", str(corpus_of(tmp_path, 8)), "--policy", policy)
    done = q36eval("gate", "--branch", "fp8-head", *options, state=state, code=2)
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("q36eval: "))
    assert said.endswith("[too-few-items]")
    for named in ("evals.word_perplexity[all]", "weigh as 5", "kl.kl_divergence[all]", f"requires {LEAST_CLUSTERS}"):
        assert named in said
    assert not History.open(state / "history.sqlite").list_runs()


def test_what_is_advisory_or_skipped_or_just_enough_is_not_refused(tmp_path: Path) -> None:
    few, enough = tmp_path / "few", tmp_path / "enough"
    for folder, lengths in ((few, [20] * 29), (enough, [20] * LEAST_CLUSTERS)):
        folder.mkdir()
        suite_of(folder, lengths)
    evals, weights = ProbeName.EVALS, ProbeName.WEIGHTS
    perplexity = policy_of(tmp_path, "evals.word_perplexity")
    advisory = policy_of(few, "evals.word_perplexity", "weights.integrity_faults", tier="advisory")
    more = policy_of(enough, "evals.word_perplexity", min_clusters=LEAST_CLUSTERS + 1)
    assert refused(few, perplexity, str(few / "suite.yaml"), None, evals) != ""
    assert refused(few, advisory, str(few / "suite.yaml"), None, evals) == ""
    assert refused(few, perplexity, str(few / "suite.yaml"), None, weights) == ""
    assert refused(enough, perplexity, str(enough / "suite.yaml"), None, evals) == ""
    assert "it requires 31 clusters" in refused(enough, more, str(enough / "suite.yaml"), None, evals)


def test_prompts_that_the_reference_is_still_to_answer_count_as_texts(tmp_path: Path) -> None:
    """Only the answers tell how many of them there are, and no more than prompts."""
    corpus = corpus_of(tmp_path, 8)
    written = yaml.safe_load(corpus.read_text())
    corpus.write_text(yaml.safe_dump({name: value for name, value in written.items() if name != "on_policy"}))
    for part, enough in (("all", True), ("on_policy/canaries", True), ("on_policy/chat", False), ("czech", False)):
        policy = policy_of(tmp_path, "kl.kl_divergence", slice=part)
        assert (refused(tmp_path, policy, "sandbox", corpus, ProbeName.KL) == "") == enough, part


def test_of_texts_alone_there_are_as_many_as_the_probe_plans(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, 12)
    texts = tmp_path / "texts.jsonl"
    lines = [json.loads(line) for line in texts.read_text(encoding="utf-8").splitlines()]
    shared = [line | {"cluster": f"book-{place // 3}"} for place, line in enumerate(lines)]
    texts.write_text("".join(f"{json.dumps(line)}\n" for line in shared), encoding="utf-8")
    documents = load_configured_corpus(corpus, load_corpus_config(corpus))
    probe = KLProbe(documents)
    declared = {figure.key: figure.clusters for figure in probe.declared()}
    counted = {figure.key: figure.clusters for figure in declared_of_corpus(documents, [])}
    assert counted["kl.kl_divergence[all]"] == counted["kl.kl_divergence[czech]"] == 4
    assert {key: counted.get(key) for key in declared if "kind=" not in key} == {
        key: clusters for key, clusters in declared.items() if "kind=" not in key
    }


def test_documents_weigh_before_they_are_scored_as_they_do_then(tmp_path: Path) -> None:
    """The declared weight is that of the measurement of a reference that answered everything, metric by metric."""
    probe = EvalsProbe(suite_of(tmp_path, [15, 90, *range(20, 60)]))
    tokenizer = load_tokenizer(BF16)
    before = {figure.metric.name: figure for figure in probe.declared_of_texts(tokenizer)}
    work = Work(probe, probe.plan(tokenizer))
    planned = {figure.metric.name: figure for figure in probe.declared() if figure.slice == "all"}
    units = {"word_perplexity": [-9.0, 1], "byte_perplexity": [-9.0, 1], "bits_per_byte": [-9.0, 1]}
    figures = {}
    for item in work.items:
        document = probe._encoded[item.key][0]
        values = document.metrics([-9.0] * len(document.instances))
        figures[item.key] = Digest(values={"responses": [-9.0], "metrics": units | values})
    for measurement in probe.summarize(lossless_outcomes(work, figures)):
        if measurement.slice != "all":
            continue
        weigh = most_effective_clusters(measurement.clusters.units)
        assert before[measurement.metric].effective_clusters == planned[measurement.metric].effective_clusters == weigh
        assert (
            effective_clusters(measurement.clusters.units)
            <= weigh
            <= effective_clusters(measurement.clusters.units) + 2
        )


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_no_part_that_may_be_judged_weighs_as_more(units: list[int], random: Any) -> None:
    """Whole clusters and parts of some, such as a chapter of a book, that cannot be scored."""
    allowed, kept = int(MAX_ERRORED_SHARE * sum(units)), sorted(units, reverse=random.random() < 0.7)
    if random.random() < 0.3:
        random.shuffle(kept)
    for at, count in enumerate(kept):
        lost = min(count, allowed) if random.random() < 0.7 else random.randint(0, min(count, allowed))
        kept[at], allowed = count - lost, allowed - lost
    assert effective_clusters(kept) <= most_effective_clusters(units) <= len(units)
