"""A group that is drawn by the reference's margin: laid out anew once it is known, and weighed back in every figure."""

from pathlib import Path
from typing import Any

import pytest

from q36eval.evals import blocks
from q36eval.evals.probe import EvalsProbe
from q36eval.probes import in_group
from q36eval.records import ItemOutcome
from q36eval.run.items import Work, finished_items
from tests.evals.small_suite import write_small_suite

SUBJECTS = ("anatomy", "astronomy", "botany", "computing", "currencies", "law")
COUNTS = {f"mmlu/{subject}.jsonl": 15 for subject in SUBJECTS} | {
    f"mmlu_dev/{subject}.jsonl": 5 for subject in SUBJECTS
}


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ninety questions; so few are drawn by margin here alone."""
    monkeypatch.setattr(blocks, "LEAST_CLUSTERS", 50)
    return write_small_suite(tmp_path, COUNTS, lambda _: {"blocks": "by_reference_margin"}, block_items=15)


@pytest.mark.long
def test_a_group_is_laid_out_by_what_the_reference_answered_and_weighed_back(
    suite: Path, tokenizer: Any, engine: Any
) -> None:
    probe = EvalsProbe(suite)
    items = [in_group(item, probe.name) for item in probe.plan(tokenizer)]
    results = {item.key: found for _, item, found in finished_items(engine, [Work(probe, items)])}
    digests = {item.key: probe.digest(engine, item, results[item.key]) for item in items}
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
        assert clusters.weights is not None
        assert clusters.weights == pytest.approx(clusters.schedule.weights), "those that bets were weighed by"
        expected = sum(planned[key].drawn.weight * digests[key].values["metrics"]["acc"] for key in seen) / len(seen)
        assert found.reference_value == pytest.approx(expected)
    every = {m.key: m for m in probe.summarize(outcomes(first))}
    assert every["evals.answers_changed[mmlu]"].clusters.weights is not None
    assert every[f"evals.accuracy[mmlu/{SUBJECTS[0]}]"].clusters.schedule is None, "a slice has no fixed number a block"

    whole = {m.key: m for m in probe.summarize(outcomes(list(planned)))}["evals.accuracy[mmlu]"]
    assert whole.clusters.weights is None
    plain = sum(digest.values["metrics"]["acc"] for digest in digests.values()) / len(digests)
    assert whole.reference_value == pytest.approx(plain)
    assert len(whole.clusters.units) == sum(p.clusters for p in whole.clusters.schedule.planned.values())


def test_a_part_of_a_group_is_evaluated_as_it_was_planned(suite: Path, tokenizer: Any) -> None:
    probe = EvalsProbe(suite, max_items=30)
    items = probe.plan(tokenizer)
    assert list(probe.know_reference(items, {})) == items
