"""The catalogue of what can be judged is what the probes measure: held against what they make of a few outcomes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.policies.measurable import FIGURES, Asked, asked_of, not_asked, unjudgeable
from canaries.specification import load_specs
from canaries.summary import summarize_outcomes
from evals.paired_clusters import PlannedItem
from evals.suite import TaskGroup
from evals.summaries import suite_measurements
from kl.measurements import document_measurements
from q36eval.config import Family, Paths
from q36eval.gate import Criterion
from q36eval.records import Answer, ItemOutcome, Measurement, ProbeName
from q36eval.stats import _bootstrap, _margin

REPOSITORY = Path(__file__).parents[3]
PATHS = Paths(REPOSITORY, REPOSITORY / "no-state")
CANARIES = ("discount-compare", "tool-call", "discount-compare-must-pass", "json-nested-must-pass")


def outcome(probe: ProbeName, group: str, number: int, stratum: str, **detail: object) -> ItemOutcome:
    answer = Answer(score=float(number % 3 > 0), text=str(number), detail=detail)
    name = f"{group}/{stratum}/{number}"
    return ItemOutcome(
        probe=probe, group=group, item_key=name, cluster=name, stratum=stratum, branch=answer, reference=answer
    )


def of_evals() -> Iterator[Measurement]:
    choices = TaskGroup(
        name="mmlu", tasks=("mmlu",), measure="accuracy", metric="acc", slice="mmlu", slice_fields=("length",)
    )
    other = TaskGroup(name="gsm8k", tasks=("gsm8k",), measure="accuracy", metric="acc", slice="gsm8k")
    texts = TaskGroup(name="texts", tasks=("wikitext",), measure="perplexity", metric="word_perplexity", slice="texts")
    asked = [outcome(ProbeName.EVALS, "mmlu", i, str(512 * (1 + i % 2)), margin_nats=1.0 + i) for i in range(6)]
    asked += [outcome(ProbeName.EVALS, "gsm8k", i, "all") for i in range(3)]
    asked += [outcome(ProbeName.EVALS, "texts", i, "all", nll_nats=9.0, tokens=5, words=4, bytes=20) for i in range(8)]
    planned = [PlannedItem(each.item_key, each.group, each.cluster, each.stratum, 0) for each in asked]
    yield from suite_measurements([choices, other, texts], asked, planned)


def of_canaries() -> Iterator[Measurement]:
    specs = load_specs(only=CANARIES)
    detail = {"margin": {"nats": 2.0}, "called": True, "schema_ok": True, "failures": [], "repeats": [{"score": 1.0}]}
    asked = [outcome(ProbeName.CANARIES, spec.id, i, "all", **detail) for spec in specs for i in range(6)]
    yield from summarize_outcomes(specs, asked)


def of_texts() -> Iterator[Measurement]:
    sums = {"tokens": 9, "finite_tokens": 9, "forward_kl": 0.1, "reverse_kl": 0.1, "reference_nll": 9.0}
    sums |= {"branch_nll": 9.1, "top1_agrees": 8.0, "max_forward_kl": 0.05, "reference_p": 3.0, "branch_p": 3.0}
    asked = [
        outcome(ProbeName.KL, "corpus", i, ("czech", "json")[i % 2], **sums, delta_p_squared=0.1) for i in range(9)
    ]
    yield from document_measurements(asked)


def test_every_measurement_is_in_the_catalogue_as_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bootstrap, "RESAMPLES", 199)  # what is measured is asked here, not how well
    monkeypatch.setattr(_margin, "RECOVERY_BISECTION_STEPS", 2)
    made = [*of_evals(), *of_canaries(), *of_texts()]
    for measurement in made:
        known = FIGURES[measurement.probe][measurement.metric]
        assert (known.estimator, known.direction, known.unit) == (
            measurement.estimator,
            measurement.direction,
            measurement.unit,
        ), measurement.key
        bounded = measurement.clusters is not None and measurement.clusters.bounds is not None
        assert known.bounded == bounded or measurement.estimator in ("census", "derived", "root_mean_square")
    of_tokens = {name for name in FIGURES[ProbeName.KL] if name.startswith("kl_") and name[3:4] in "pm"}
    for probe in (ProbeName.EVALS, ProbeName.CANARIES, ProbeName.KL):
        names = {measurement.metric for measurement in made if measurement.probe is probe}
        assert set(FIGURES[probe]) - of_tokens == names - of_tokens


@pytest.fixture(scope="module")
def release() -> Asked:
    return asked_of(Family.load(PATHS.families / "qwen3.6-35b-a3b.yaml"), "release", PATHS)


def criterion(probe: str, metric: str, slice: str = "all", kind: str = "max_increase", value: float = 0.1) -> Criterion:
    margin = {"kind": kind, "value": value, "source": "test"}
    fields = {"id": "x", "probe": probe, "metric": metric, "slice": slice, "margin": margin, "lanes": ["freeform"]}
    return Criterion.model_validate(fields)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (criterion("kl", "kl_divergenc"), "gives no metric 'kl_divergenc'; it gives kl_divergence"),
        (criterion("evals", "recovery", "mmlu", "min_recovery", 0.9), "computed from another measurement"),
        (criterion("kl", "kl_divergence"), "a max_increase margin does not judge kl_divergence; max_value does"),
        (criterion("kl", "top1_agreement", kind="max_value"), "higher is better"),
        (criterion("evals", "items_gained", "mmlu", "max_count", 3), "more is no fault"),
        (criterion("kl", "kl_max", kind="max_value"), "can FAIL and never PASS"),
        (criterion("canaries", "decisive_margin", "structured", "min_recovery", 0.9), "no bounds"),
        (criterion("evals", "accuracy", "mmlu", "min_recovery", 0.9), None),
    ],
)
def test_what_no_evidence_could_make_pass(asked: Criterion, words: str | None) -> None:
    found = unjudgeable(asked)
    assert found is None if words is None else found is not None and words in found


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (criterion("weights", "integrity_faults", "layer0", "max_count"), "measures all, not 'layer0'"),
        (criterion("kl", "kl_divergence", "kind=xml", "max_value"), "kinds are text, json, tool_call"),
        (criterion("kl", "kl_p99", "kind=json", "max_value"), None),
        (criterion("kl", "kl_p95", "kind=json", "max_value"), "is not measured by kind"),
        (criterion("kl", "kl_p95", "czech", "max_value"), "of slices kl_median, kl_p99 are"),
        (criterion("kl", "kl_divergence", "czech", "max_value"), None),  # a person's own corpus may hold it
        (criterion("evals", "accuracy", "ruler/131072", "min_recovery", 0.9), None),
        (criterion("evals", "accuracy", "ruler/262144", "min_recovery", 0.9), "no accuracy of 'ruler/262144'"),
        (criterion("evals", "accuracy", "gsm8k", "min_recovery", 0.9), "; extended would ask it"),
        (
            criterion("evals", "word_perplexity", "mmlu", "min_retention", 0.9),
            "no perplexity of 'mmlu', but of wikitext",
        ),
        (criterion("canaries", "failure_rate", "tool-callz"), "is asked no canary 'tool-callz'"),
        (criterion("canaries", "failure_rate", "tool-call-must-pass"), "draws nothing"),
        (criterion("canaries", "must_pass_flips", "tool-call", "max_count"), "no must-pass prompts"),
        (criterion("canaries", "schema_accuracy", "structured"), "over tool canaries and all"),
        (criterion("canaries", "schema_accuracy", "tool-call"), None),
    ],
)
def test_what_a_suite_does_not_ask(asked: Criterion, words: str | None, release: Asked) -> None:
    found = not_asked(asked, release)
    assert found is None if words is None else found is not None and words in found
