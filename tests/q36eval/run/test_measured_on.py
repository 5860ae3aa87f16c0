"""A run says what it is measured on: the sandbox's items by no benchmark's name, the real ones by their own."""

import re
from pathlib import Path

import pytest
import yaml

from q36eval.app.targets import load_family
from q36eval.config import Paths
from q36eval.evals.suite import TELLING, EvalSuite, LoadedSuite, read_suite
from q36eval.hub_checkpoints import Snapshot
from q36eval.measurement_facts import recorded, recorded_subject
from q36eval.records import ProbeName
from q36eval.run.probe_set import Limits, build_evals, published_facts
from q36eval.run.request import Request, Target
from q36eval.run.suites import shipped_suites

PATHS = Paths.default()
BENCHMARK = re.compile(r"mmlu|ruler|wikitext|gpqa|gsm|math-|ifeval|humaneval", re.IGNORECASE)


def test_a_run_of_the_sandbox_claims_no_benchmark() -> None:
    family = load_family("sandbox", PATHS)
    target = Target("fp8-head", PATHS.data / "sandbox" / "fp8-head")
    request = Request(family=family, branch=target, reference=None, suite="sandbox", policy=None)
    facts = published_facts(request, [build_evals("sandbox", PATHS, Limits())])
    assert not BENCHMARK.search(" ".join(told["title"] for told in facts["measured_on"]["evals"].values()))
    subject = recorded_subject(facts)
    assert subject is not None
    assert (subject.repository, subject.scheme) == (None, "NVFP4 + FP8_BLOCK lm_head (compressed-tensors)")
    assert subject.reference == "BF16 of q36eval sandbox (trained by this repository)"
    on, part = recorded(facts, ProbeName.EVALS, "ruler/vt")
    assert on is not None
    assert (on.dataset, part) == (None, "vt")
    assert recorded(facts, ProbeName.EVALS, "czech")[1] == "czech"
    assert recorded(facts, ProbeName.KL, "all") == (None, None)
    assert recorded({"measured_on": {"evals": 3}}, ProbeName.EVALS, "x") == (None, None)


def test_a_download_is_named_by_repository_and_commit() -> None:
    """On both sides; a folder's family gives neither."""
    place, commits = PATHS.data / "sandbox", ("1" * 40, "2" * 40)
    branch = Target("Org/Model@v1", place / "fp8-head", Snapshot(place / "fp8-head", "Org/Model", "v1", commits[0]))
    base = Target("Org/Base@main", place / "bf16", Snapshot(place / "bf16", "Org/Base", "main", commits[1]))
    family = load_family("sandbox", PATHS)
    request = Request(family=family, branch=branch, reference=base, suite="sandbox", policy=None)
    subject = recorded_subject(published_facts(request, []))
    assert subject is not None
    assert (subject.repository, subject.revision, subject.commit) == ("Org/Model", "v1", commits[0])
    assert subject.reference == f"Org/Base at commit {commits[1]}"


def test_a_shipped_benchmark_names_the_dataset_its_tasks_read() -> None:
    for name in set(shipped_suites()) - {"sandbox"}:
        for group in read_suite(shipped_suites()[name]).groups:
            assert BENCHMARK.search(group.title or "")
            assert (group.dataset is None) == (group.ruler is not None)  # RULER's items are generated


def test_what_items_are_called_is_no_part_of_what_is_asked() -> None:
    """So that naming them better makes no reference's answers stale."""
    path = shipped_suites()["sandbox"]
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    for group in document["groups"]:
        group["title"] = "called otherwise"
    renamed, own = EvalSuite.model_validate(document), read_suite(path)
    asked = [suite.model_dump(mode="json", exclude=TELLING, exclude_defaults=True) for suite in (renamed, own)]
    assert asked[0] == asked[1]
    assert LoadedSuite(path).measured_on["mmlu"].title == own.groups[0].title


def test_a_dataset_that_is_no_source_is_refused(tmp_path: Path) -> None:
    document = yaml.safe_load(shipped_suites()["quick"].read_text(encoding="utf-8"))
    document["groups"][0]["dataset"] = "someone/else"
    with pytest.raises(ValueError, match="someone/else"):
        EvalSuite.model_validate(document)
