"""From outcomes to measurements, against figures worked out by hand and by plain loops."""

import math
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import q36eval.evals
from q36eval.evals.figures import Plan
from q36eval.evals.paired_clusters import PlannedItem
from q36eval.evals.suite import TaskGroup, read_suite
from q36eval.evals.summaries import measurements, suite_measurements
from q36eval.paired_figures import EffectiveLength
from q36eval.records import Answer, ItemOutcome, Measurement, PlannedClusters, ProbeName
from q36eval.reports.evals_figures import EvalsFigures, effective_lengths
from tests.outcomes import outcome as outcome_of

MMLU = TaskGroup(
    name="mmlu", task="", measure="accuracy", metric="acc", slice="mmlu", slice_fields=("subject",), subsets={"law": {}}
)
RULER = MMLU.model_copy(update={"name": "ruler", "slice": "ruler", "slice_fields": ("kind", "length")})
PERPLEXITY = MMLU.model_copy(
    update={"name": "perplexity", "measure": "perplexity", "slice": "all", "slice_fields": ("slice",)}
)


def outcome(number: int, branch: float | None, reference: float | None, **fields: Any) -> ItemOutcome:
    sides = []
    for side, score in enumerate((branch, reference)):
        text = fields.get("texts", (str(score),) * 2 if branch == reference else ("one", "other"))[side]
        detail = fields.get("details", ({}, {}))[side]
        error = None if score is not None else "gone"
        sides.append(Answer(score=score, text=None if error else text, error=error, detail=detail))
    named = {name: value for name, value in fields.items() if name not in ("texts", "details")}
    named = {"group": "mmlu", "cluster": f"fact {number}", "stratum": "law"} | named
    return outcome_of(ProbeName.EVALS, str(number), *sides, **named)


def by_key(found: Iterable[Measurement]) -> dict[str, Measurement]:
    listed = list(found)
    assert len({m.key for m in listed}) == len(listed)
    return {m.key.removeprefix("evals."): m for m in listed}


def test_accuracy_is_paired_counts_errors_apart_and_groups_questions_about_one_fact() -> None:
    outcomes = [outcome(i, 1.0, 1.0) for i in range(6)]
    outcomes += [outcome(6, 0.0, 1.0), outcome(7, 0.0, 1.0, cluster="fact 6"), outcome(8, 1.0, 0.0)]
    outcomes += [outcome(9, None, 1.0), outcome(10, 1.0, None)]
    found = by_key(measurements(MMLU, outcomes))
    whole = found["accuracy[mmlu]"]
    assert whole == found["accuracy[mmlu/law]"].model_copy(update={"slice": "mmlu"})
    assert whole.counts.model_dump() == {"total": 11, "scored": 9, "errored": 2, "unreadable": 0}
    assert (whole.value, whole.reference_value) == (pytest.approx(7 / 9), pytest.approx(8 / 9))
    assert whole.effect == pytest.approx(-1 / 9)
    assert len(whole.clusters.units) == 10, "two questions about fact 6 are one cluster"
    assert found["recovery[mmlu]"].value == pytest.approx(7 / 8)
    assert math.isnan(found["recovery[mmlu]"].effect_interval.lower), "2 of 11 errored: nothing is judged"
    assert "errored" in found["recovery[mmlu]"].effect_interval.method
    changed = found["answers_changed[mmlu]"]
    assert changed.value == pytest.approx(3 / 9), "an errored answer is no changed one"
    assert {name: found[f"items_{name}[mmlu]"].value for name in ("lost", "gained")} == {"lost": 2, "gained": 1}


def test_parts_of_marks_count_as_parts_and_only_full_marks_flip() -> None:
    pairs = [(0.5, 1.0), (0.0, 0.5), (0.5, 0.25), (1.0, 0.75), (1.0, 1.0), (0.0, 1.0)]
    outcomes = [outcome(i, *pair) for i, pair in enumerate(pairs)]
    assert [o.flip for o in outcomes] == ["regression", None, None, "improvement", None, "regression"]
    found = by_key(measurements(MMLU, outcomes))
    assert found["accuracy[mmlu]"].value == pytest.approx(3.0 / 6)
    assert found["recovery[mmlu]"].value == pytest.approx(3.0 / 4.5)
    assert (found["items_lost[mmlu]"].value, found["items_gained[mmlu]"].value) == (2, 1)


def test_a_changed_answer_counts_whether_right_or_wrong() -> None:
    texts = [("A", "A"), ("B", "C"), (" C\n", "C"), ("D", "A")]
    outcomes = [outcome(i, 0.0, 0.0, texts=pair) for i, pair in enumerate(texts)]
    found = by_key(measurements(MMLU, outcomes))
    assert found["answers_changed[mmlu]"].value == pytest.approx(2 / 4)
    assert found["items_lost[mmlu]"].value == 0


@pytest.mark.long
def test_ruler_is_sliced_by_kind_and_by_length_and_has_an_effective_length() -> None:
    def at(kept: dict[int, float]) -> EffectiveLength:
        outcomes = [
            outcome(i, float(copy < 20 * kept[length]), 1.0, group="ruler", stratum=f"{kind}/{length}")
            for i, (kind, length, copy) in enumerate(product(("vt", "qa"), kept, range(20)))
        ]
        measured = list(measurements(RULER, outcomes))
        found = by_key(measured)
        names = [m.slice for m in found.values() if m.metric == "accuracy"]
        assert names == ["ruler", "ruler/qa", "ruler/vt", *(f"ruler/{length}" for length in sorted(kept))]
        assert found["recovery[ruler/256]"].value == pytest.approx(kept[256])
        return effective_lengths(EvalsFigures(measured), {})["ruler"]

    assert at({1024: 1.0, 256: 1.0}).by_value == 1024
    assert at({256: 1.0, 512: 0.95, 1024: 1.0}).by_value == 256
    below = at({256: 0.95, 512: 1.0})
    assert (below.by_value, below.by_lower_bound) == (None, None)
    assert at({1024: 1.0, 256: 1.0}).by_lower_bound is None, "40 items do not show 97 %"


@pytest.mark.parametrize("name", ["sandbox", "quick", "release", "extended"])
def test_ruler_of_every_shipped_suite_has_an_effective_length(name: str) -> None:
    """lm-eval's own documents name the length they were made for otherwise than ours."""
    suite = read_suite(Path(q36eval.evals.__file__).parent / f"suites/{name}.yaml")
    group = next(group for group in suite.groups if group.name == "ruler")
    outcomes = [outcome(i, 1.0, 1.0, group="ruler", stratum=f"vt/{(4096, 8192)[i % 2]}") for i in range(20)]
    figures = EvalsFigures(list(measurements(group, outcomes)))
    assert figures.groups_with_lengths() == ["ruler"]
    assert effective_lengths(figures, {})["ruler"].by_value == 8192


def document(
    number: int, tokens: int, nll: tuple[float | None, float | None], slice_name: str = "czech"
) -> ItemOutcome:
    counted = {"tokens": tokens, "words": tokens // 2}
    details = tuple(counted if nats is None else counted | {"nll_nats": nats} for nats in nll)
    scores = tuple(None if nats is None else nats / tokens for nats in nll)
    return outcome(number, *scores, group="perplexity", stratum=slice_name, details=details)


def test_each_perplexity_weighs_documents_by_its_own_units_and_leaves_errored_ones_out() -> None:
    found = by_key(
        measurements(PERPLEXITY, [document(0, 10, (20, 10)), document(1, 30, (20, 10)), document(2, 6, (None, 9))])
    )
    for metric, units, errored in (("perplexity", 40, 6), ("word_perplexity", 20, 3)):
        whole = found[f"{metric}[all]"]
        assert whole.value == pytest.approx(math.exp(40 / units))
        assert whole.reference_value == pytest.approx(math.exp(20 / units))
        assert whole.effect == pytest.approx(math.exp(20 / units))
        assert whole.counts.model_dump() == {
            "total": units + errored,
            "scored": units,
            "errored": errored,
            "unreadable": 0,
        }
        assert f"{metric}[czech]" in found


@pytest.mark.parametrize(
    ("scores", "value", "why"),
    [
        ([(None, 1.0)] * 5, math.nan, "no item was scored"),
        ([(1.0, 0.0), (0.0, 0.0)] * 5, math.nan, "reference scores zero"),
        ([(1.0, 1.0)], 1.0, "betting"),
    ],
    ids=["all errored", "reference all wrong", "one item"],
)
def test_degenerate_groups_are_measured_without_a_claim(
    scores: Sequence[tuple[float | None, float]], value: float, why: str
) -> None:
    outcomes = [outcome(i, b, r, cluster="one text", stratum="law") for i, (b, r) in enumerate(scores)]
    recovery = by_key(measurements(MMLU, outcomes))["recovery[mmlu]"]
    assert recovery.value == pytest.approx(value, nan_ok=True)
    assert why in recovery.effect_interval.method
    lengths = [o.model_copy(update={"stratum": "vt/256", "group": "ruler"}) for o in outcomes]
    effective = effective_lengths(EvalsFigures(list(measurements(RULER, lengths))), {})["ruler"]
    assert effective.by_value == (256 if value == 1.0 else None)


def planned(group: str, items: int) -> list[PlannedItem]:
    return [PlannedItem(f"{group}{i}", group, f"{group}{i}", "law/256", 0) for i in range(items)]


def test_the_suite_joins_questions_about_one_fact_across_groups_and_says_how_many_were_planned() -> None:
    outcomes = [outcome(i, float(i > 1), 1.0) for i in range(6)]
    outcomes += [outcome(10 + i, 1.0, 1.0, group="ruler", cluster=f"fact {i}", stratum="qa/256") for i in range(2)]
    outcomes.append(document(20, 10, (20, 10)))
    found = by_key(suite_measurements([MMLU, RULER, PERPLEXITY], outcomes, [*planned("mmlu", 9), *planned("ruler", 2)]))
    suite = found["accuracy[suite]"]
    assert (suite.value, suite.counts.scored) == (pytest.approx(6 / 8), 8)
    assert len(suite.clusters.units) == 6
    assert found["items_planned[mmlu]"].value == 9
    alone = by_key(suite_measurements([MMLU, PERPLEXITY], [o for o in outcomes if o.group != "ruler"]))
    assert "accuracy[suite]" not in alone, "one group is the suite"
    assert "items_planned[mmlu]" not in alone
    assert list(suite_measurements([MMLU, RULER, PERPLEXITY], [], planned("mmlu", 5))) == []


def test_blocks_and_planned_sizes_are_laid_out_beside_the_clusters_in_their_order() -> None:
    outcomes = [outcome(i, 1.0, 1.0, cluster=f"c{i}", stratum=("law", "music")[i % 2]) for i in (4, 0, 3, 1)]
    plan = [PlannedItem(str(i), "mmlu", f"c{i}", ("law", "music")[i % 2], i // 2) for i in range(20)]
    plan.append(PlannedItem("20", "mmlu", "c19", "music", 9))
    found = by_key(measurements(MMLU, outcomes, Plan(plan)))
    schedule = found["accuracy[mmlu]"].clusters.schedule
    assert schedule.blocks == (2, 0, 1, 0)
    assert schedule.largest == 1, "a bet that allows for the one cluster of two would cost more than it is worth"
    assert schedule.planned == {"": PlannedClusters(clusters=20, units=21, squares=23, cut=1)}, "asked or not"
    law = found["accuracy[mmlu/law]"].clusters.schedule
    assert law.blocks == (2, 0)
    astray = [*plan, PlannedItem("x", "mmlu", "c4", "law", 7)]
    assert by_key(measurements(MMLU, outcomes, Plan(astray)))["accuracy[mmlu]"].clusters.schedule is None
