"""What the reference can do of each family: counted over what it answers first, from what it really answered.

A group that is drawn by the reference's margin: laid out anew once it is known, and weighed back in every figure.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from q36eval.evals import blocks
from q36eval.evals.competence import sampled
from q36eval.evals.paired_clusters import PlannedItem
from q36eval.evals.probe import EvalsProbe
from q36eval.probes import Digest, WorkItem, in_group
from q36eval.records import FamilyCompetence, ItemOutcome, Measurement
from q36eval.run.items import Work, finished_items
from tests.evals.small_suite import write_small_suite

COUNTS = {"mmlu/anatomy.jsonl": 4, "mmlu/law.jsonl": 3, "ruler/vt.jsonl": 2, "short_answers/law.jsonl": 3}
COUNTS |= {f"{group}_dev/{subject}.jsonl": 5 for group in ("mmlu", "short_answers") for subject in ("anatomy", "law")}


class Answered:
    """A small suite and what a random model answers to it."""

    def __init__(self, suite: Path, tokenizer: Any, engine: Any) -> None:
        self.probe = EvalsProbe(suite)
        self.items = [in_group(item, self.probe.name) for item in self.probe.plan(tokenizer)]
        results = {item.key: found for _, item, found in finished_items(engine, [Work(self.probe, self.items)])}
        self.digests = {item.key: self.probe.digest(engine, item, results[item.key]) for item in self.items}

    def of(self, group: str) -> list[WorkItem]:
        return [item for item in self.items if item.task == group]

    def outcome(self, item: WorkItem, branch: Digest) -> ItemOutcome:
        return self.probe._outcome(item, branch, self.digests[item.key])

    def summary(self, outcomes: Sequence[ItemOutcome]) -> dict[str, Measurement]:
        return {each.key: each for each in self.probe.summarize(outcomes)}


@pytest.fixture
def answered(tmp_path: Path, tokenizer: Any, engine: Any) -> Answered:
    return Answered(write_small_suite(tmp_path, COUNTS), tokenizer, engine)


def scored(digest: Digest, metric: str, score: float) -> Digest:
    return replace(digest, values=digest.values | {"metrics": {metric: score}})


@pytest.mark.long
def test_a_random_model_is_cut_off_and_solves_next_to_nothing(answered: Answered) -> None:
    """Random weights write until their budget ends; one answer that errored is not counted as wrong."""
    probe, digests = answered.probe, answered.digests
    mmlu, ruler, answers = answered.of("mmlu"), answered.of("ruler"), answered.of("short_answers")
    for item, score in zip(mmlu, (1, 1, 1, 0, 0, 0, 0), strict=True):
        digests[item.key] = scored(digests[item.key], "acc", score)
    digests[ruler[0].key] = scored(digests[ruler[0].key], "string_match_all", 0.5)
    known = digests | {answers[0].key: Digest(error="gone")}
    assert list(probe.know_reference(answered.items, known)) == list(answered.items)
    outcomes = [probe.lossless(item, digests[item.key]) for item in answered.items[:3]]
    found = answered.summary([probe.lossless(item, digests[item.key]) for item in answered.items])

    four = FamilyCompetence(name="mmlu", items=7, informative=3, chance=0.25, causes={"wrong": 4})
    assert found["evals.accuracy[mmlu]"].competence == (four,)
    (part,) = found["evals.accuracy[mmlu/anatomy]"].competence or ()
    assert (part.name, part.items) == ("mmlu", 4), "of a slice, the items that are planned of it"
    vt = found["evals.accuracy[ruler]"].competence or ()
    assert {(family.name, family.items, family.informative) for family in vt} == {("ruler/vt/256", 2, 0)}
    assert vt[0].causes == {"cut_off": 2}, "half marks are no full marks"
    (free,) = found["evals.accuracy[short_answers]"].competence or ()
    assert (free.chance, free.causes["errored"]) == (0.0, 1)
    assert sum(free.causes.values()) == free.items - free.informative == 3
    whole = found["evals.accuracy[suite]"]
    # the sandbox asks about one fact as a multiple choice and as a short answer
    both = "mmlu + short_answers"
    assert {family.name: family.items for family in whole.competence or ()} == {both: 10, "ruler/vt/256": 2}
    assert sorted(set(whole.clusters.families)) == [both, "ruler/vt/256"]

    looked = {each.key: each for each in probe.look(outcomes, ["evals.accuracy[mmlu]"])}
    assert looked["evals.accuracy[mmlu]"].competence == (four,), "all that is planned, however little was evaluated"


def test_causes_are_told_of_both_sides(answered: Answered) -> None:
    item = answered.of("ruler")[0]
    reference = answered.digests[item.key]
    assert reference.values["cut_off"] is True
    answered.probe.know_reference(answered.items, answered.digests)
    outcomes = [answered.outcome(item, replace(reference, values=reference.values | {"cut_off": False}))]
    (figure,) = (each for each in answered.summary(outcomes).values() if each.key == "evals.accuracy[ruler]")
    assert figure.causes.reference == {"cut_off": 1}
    assert figure.causes.branch == {"wrong": 1}
    (figure,) = answered.probe.look([answered.outcome(item, Digest(error="gone"))], ["evals.accuracy[ruler]"])
    assert figure.causes.branch == {"errored": 1}


def test_of_generated_answers_the_first_blocks_say_what_the_reference_can_do(answered: Answered) -> None:
    """Until they hold `SAMPLE` of each family, or all of it; what it answers later changes nothing."""
    sizes = {"large": 100, "small": 3}
    planned = [
        PlannedItem(f"{name}{n}", "g", f"{name}{n}", name, n * 10 // size)
        for name, size in sizes.items()
        for n in range(size)
    ]
    first = set(sampled({item: item.stratum for item in planned}))
    blocks = {item.block for item in planned if item.key in first}
    assert blocks == set(range(7)), "the third of the small family stands in block 6, and 20 of the large in 0 and 1"
    assert first == {item.key for item in planned if item.block in blocks}

    probe, short = answered.probe, answered.of("short_answers")
    probe.know_reference(answered.items, {item.key: answered.digests[item.key] for item in short[:2]})
    outcomes = [answered.outcome(item, answered.digests[item.key]) for item in short]
    (figure,) = (each for each in answered.summary(outcomes).values() if each.key == "evals.accuracy[short_answers]")
    assert figure.counts.total == 3
    (family,) = figure.competence or ()
    assert (family.items, family.weight) == (2, 3)
    assert figure.clusters.schedule.planned[family.name].right == 3 * family.informative / 2


# -- a group that is drawn by the reference's margin

SUBJECTS = ("anatomy", "astronomy", "botany", "computing", "currencies", "law")
NINETY = {f"mmlu/{subject}.jsonl": 15 for subject in SUBJECTS} | {
    f"mmlu_dev/{subject}.jsonl": 5 for subject in SUBJECTS
}


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ninety questions; so few are drawn by margin here alone."""
    monkeypatch.setattr(blocks, "LEAST_CLUSTERS", 50)
    return write_small_suite(tmp_path, NINETY, lambda _: {"blocks": "by_reference_margin"}, block_items=15)


@pytest.mark.long
def test_a_group_is_laid_out_by_what_the_reference_answered_and_weighed_back(
    suite: Path, tokenizer: Any, engine: Any
) -> None:
    known = Answered(suite, tokenizer, engine)
    probe, items, digests = known.probe, known.items, known.digests
    laid_out = probe.know_reference(items, digests)
    assert {item.key for item in laid_out} == {item.key for item in items}
    assert [item.block for item in laid_out] == sorted(item.block for item in laid_out)
    assert any(a.block != b.block for a in items for b in laid_out if a.key == b.key)
    blocks_of_group: dict[str, set[int]] = {}
    for item in laid_out:
        for request in (*item.scores, *item.generations):
            blocks_of_group.setdefault(request.group, set()).add(item.block)
    assert all(len(blocks) == 1 for blocks in blocks_of_group.values()), "no batch holds items of two blocks"
    again = EvalsProbe(suite)
    raw = [in_group(item, again.name) for item in again.plan(tokenizer)]
    assert list(again.know_reference(raw, digests)) == list(laid_out), "a resumed run lays out the same"

    planned = {item.key: item for item in probe._planned}
    margin = {key: abs(probe._reference_margin(key, digests[key]) or 0.0) for key in planned}
    last_bet = next(iter(planned.values())).drawn.last_bet
    first = [item.key for item in laid_out if item.block <= last_bet]
    rest = [item.key for item in laid_out if item.block > last_bet]
    assert sum(margin[key] for key in first) / len(first) < sum(margin[key] for key in rest) / len(rest)

    def outcomes(keys: list[str]) -> list[ItemOutcome]:
        return [probe.lossless(item, digests[item.key]) for item in laid_out if item.key in set(keys)]

    for upto in range(last_bet + 1):
        seen = [item.key for item in laid_out if item.block <= upto]
        (found,) = probe.look(outcomes(seen), ["evals.accuracy[mmlu]"])
        clusters = found.clusters
        assert clusters.weights == pytest.approx(clusters.schedule.weights), "those that bets were weighed by"
        expected = sum(planned[key].drawn.weight * digests[key].values["metrics"]["acc"] for key in seen) / len(seen)
        assert found.reference_value == pytest.approx(expected)
    every = known.summary(outcomes(first))
    assert every["evals.answers_changed[mmlu]"].clusters.weights is not None
    assert every[f"evals.accuracy[mmlu/{SUBJECTS[0]}]"].clusters.schedule is None, "a slice has no fixed number a block"

    whole = known.summary(outcomes(list(planned)))["evals.accuracy[mmlu]"]
    assert whole.clusters.weights is None
    plain = sum(digest.values["metrics"]["acc"] for digest in digests.values()) / len(digests)
    assert whole.reference_value == pytest.approx(plain)
    assert len(whole.clusters.units) == sum(p.clusters for p in whole.clusters.schedule.planned.values())


def test_a_part_of_a_group_is_evaluated_as_it_was_planned(suite: Path, tokenizer: Any) -> None:
    probe = EvalsProbe(suite, max_items=30)
    items = probe.plan(tokenizer)
    assert list(probe.know_reference(items, {})) == items
