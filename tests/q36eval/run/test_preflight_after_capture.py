"""A policy is refused where a branch that is the reference would not pass, and nowhere else."""

from contextlib import nullcontext
from typing import Any

import pytest

from q36eval.checkpoints import load_tokenizer
from q36eval.errors import UsageError
from q36eval.evals.probe import EvalsProbe
from q36eval.gate import Policy
from q36eval.probes import Digest, WorkItem
from q36eval.run.items import Work
from q36eval.run.preflight import problems_after_capture, refuse
from tests.evals.small_suite import ROOT, write_small_suite
from tests.q36eval.gate.evidence import only
from tests.raising import raises

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
