"""A policy that the texts cannot show is refused before a model is opened, and what they might show is not."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from q36eval.app.targets import load_family
from q36eval.checkpoints import load_tokenizer
from q36eval.config import Paths
from q36eval.evals.probe import EvalsProbe
from q36eval.gate.judgement import LEAST_CLUSTERS, effective_clusters, most_effective_clusters
from q36eval.gate.policy_file import read_policy
from q36eval.history import History
from q36eval.kl.corpus_config import load_configured_corpus, load_corpus_config
from q36eval.kl.probe import KLProbe
from q36eval.probes import Digest
from q36eval.records import ProbeName
from q36eval.run.declared_figures import declared_of_corpus
from q36eval.run.items import Work
from q36eval.run.preflight import lossless_outcomes, prepare
from q36eval.run.request import Request, Target
from q36eval.stats import MAX_ERRORED_SHARE
from tests.commands import q36eval
from tests.evals.small_suite import FROZEN, ROOT, write_small_suite
from tests.frozen_data import write_frozen
from tests.raising import failing
from tests.small_corpus import write_corpus

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
    done = q36eval("gate", "--branch", "fp8-head", *options, state=state)
    assert done.returncode == 2, done.stderr
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("q36eval: "))
    assert said.endswith("[too-few-items]")
    assert (
        "word-perplexity (min_retention 0.5 on evals.word_perplexity[all]): a figure of this kind requires 30" in said
    )
    assert "weigh as 5 of equal size at most" in said
    assert (
        f"kl-divergence (max_value 0.1 on kl.kl_divergence[all]): a figure of this kind requires {LEAST_CLUSTERS}"
        in said
    )
    assert "corpus.yaml has 8 of all" in said
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
        assert measurement.clusters is not None
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
