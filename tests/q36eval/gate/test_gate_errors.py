"""Whole gates by simulation, small; the long run's figures are in benchmarks/README.md."""

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import release_gates
from benchmarks.gate_errors import POLICY, Chunk, Tally, holds, mean_correlation, run_chunk
from benchmarks.gate_remedies import Expected
from benchmarks.reference_reruns import ROWS, SCORING, reruns
from benchmarks.simulated_evidence import BLOCK_ITEMS, Scenario, Shape, blocks_of, draw_gates
from benchmarks.simulated_gates import Asking
from q36eval.evals.frozen import read_manifest
from q36eval.evals.suite import read_suite
from q36eval.gate import Policy
from q36eval.gate.policy_file import read_policy
from q36eval.stats import loss_limit

GATES = 2
SHARE_ERROR = 4.0
"""Standard errors: of some fifty comparisons with seeded draws none lies this far out by chance (3 in 1,000)."""


@pytest.fixture(scope="module")
def policy() -> Policy:
    return read_policy(POLICY)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_every_sample_is_of_a_population_that_lost_what_the_scenario_says(policy: Policy, shift: float) -> None:
    losses = dict(zip(("mmlu", "ruler", "failures-structured", "kl", "perplexity"), (0, 1, 3, 1, 3), strict=True))
    scenario = Scenario("mixed", "three margins worse", 0.04, {k: float(v) for k, v in losses.items()}, shift=shift)
    draws = draw_gates(policy, Shape.load(), scenario, 400, [5])
    criteria = {criterion.id: criterion for criterion in policy.criteria}
    for name, margins in losses.items():
        found, margin = draws[name].losses, criteria[name].margin
        right = 1.0 if margin.kind != "min_recovery" else float(draws[name].reference.mean())
        error = found.std() / found.size**0.5
        assert abs(found.mean() - margins * loss_limit(margin) * right) < SHARE_ERROR * error + 1e-4, name
    changed = draws["mmlu"].branch != draws["mmlu"].reference
    assert abs(changed.mean() - 0.04) < SHARE_ERROR * (0.04 / changed.size) ** 0.5


def test_the_latent_shift_moves_criteria_together_and_changes_none(policy: Policy) -> None:
    alone, together = (
        draw_gates(policy, Shape.load(), Scenario("x", "identical", 0.04, shift=shift), 400, [5])
        for shift in (0.0, 0.5)
    )
    assert abs(mean_correlation(alone)) < 0.1
    assert 0.35 < mean_correlation(together) < 0.55
    for name, draws in alone.items():
        assert sorted(draws.losses) == sorted(together[name].losses)


def test_the_blocks_are_the_suites() -> None:
    assert read_suite(Path("evals/suites/sandbox.yaml")).block_items == BLOCK_ITEMS
    assert Counter(blocks_of(1068)) == {**dict.fromkeys(range(5), 175), 5: 193}
    assert Counter(blocks_of(525)) == {0: 175, 1: 175, 2: 175}


def test_as_many_items_are_simulated_as_the_sandbox_asks() -> None:
    asked = Counter[str]()
    for name, entry in read_manifest(Path("data/tasks/sandbox")).files.items():
        asked[name.partition("/")[0]] += entry.lines
    simulated = {group: sum(items for _, items in scores) for group, scores in Shape.load().accuracy.items()}
    assert simulated == {group: asked[group] for group in ("mmlu", "short_answers", "ruler")}


def tally(policy: Policy, scenario: Scenario, gates: int = GATES) -> Tally:
    return run_chunk(Chunk(policy, scenario, gates, (1, 2), exhaustive=True))


def test_a_quiet_identical_branch_passes_and_a_ruined_one_fails_before_the_evals(policy: Policy) -> None:
    quiet = tally(policy, Scenario("quiet", "identical", 0.01))
    assert quiet.verdicts == {"PASS": GATES}
    assert quiet.exhaustive == {"PASS then PASS": GATES}
    assert quiet.asked["evals.accuracy[mmlu]"] < GATES * 525
    ruined = dict.fromkeys(("failures-structured", "failures-freeform"), 6.0)
    found = tally(policy, Scenario("ruined", "three margins worse", 0.01, ruined))
    assert (found.verdicts, found.stopped) == ({"FAIL": GATES}, {"canaries": GATES})
    assert found.exhaustive == {"FAIL then FAIL": GATES}
    assert "evals.accuracy[mmlu]" not in found.asked


def test_a_branch_at_its_margin_hardly_ever_passes(policy: Policy) -> None:
    of_kl = policy.model_copy(
        update={"criteria": tuple(c for c in policy.criteria if c.id in ("kl", "outputs-finite"))}
    )
    found = tally(of_kl, Scenario("at", "at the margin", 0.01, {"kl": 1.0}), 40)
    # 40 gates at 2.5 % hold five or more passes once in 300 times
    assert found.verdicts["PASS"] == found.own["kl PASS"] < 5


def test_shortcuts_change_no_verdict(policy: Policy) -> None:
    chunk = Chunk(policy, Scenario("x", "identical", 0.06), 1, (1, 2))
    assert run_chunk(chunk) == run_chunk(replace(chunk, short=False))


def test_a_flipped_prompt_fails_its_lane(policy: Policy) -> None:
    scenario = Scenario("flipped", "one fault", 0.01, flipped=1)
    draws = draw_gates(policy, Shape.load(), scenario, 1, [3])
    gate = Asking(policy, Shape.load(), scenario, draws, np.random.default_rng(1)).gate(0)
    assert gate.report.decisive == ("must-pass-freeform", "must-pass-structured")
    assert gate.stopped == "must-pass"


def test_a_bar_holds_only_where_the_whole_interval_does() -> None:
    scenario = Scenario("x", "identical", 0.01)
    passing = [Counter(PASS=passed, INCONCLUSIVE=1000 - passed) for passed in (1000, 960, 930)]
    failing = [Counter(PASS=1000 - failed, FAIL=failed) for failed in (0, 8, 20)]
    for counted in (passing, failing):
        assert [holds(scenario, Tally(1000, verdicts)) for verdicts in counted] == ["yes", "open", "no"]


def test_remedies_are_more_items_or_a_wider_margin(policy: Policy) -> None:
    criterion = next(c for c in policy.criteria if c.id == "mmlu")
    expected = Expected(policy, Shape.load(), criterion)
    few, more, wider = (expected.power(*asked, 0.06).passes for asked in ((175, 0.95), (525, 0.95), (175, 0.85)))
    assert few < min(more, wider)


def test_reruns_of_the_reference_differ_and_begin_with_the_reference_as_it_is() -> None:
    planned = reruns(90, ["cpu"])
    assert len({asdict(rerun)["number"] for rerun in planned}) == 90
    assert planned[0].name == "as it is, answers in the engine's rows, fused kernels, cpu"
    every = {replace(rerun, number=0) for rerun in planned}
    assert len(every) == len(SCORING) * len(ROWS) * 2
    assert {rerun.scoring for rerun in planned[72:]} == {"shuffled batches"}
    assert {rerun.device for rerun in reruns(50, ["cpu", "cuda"])} == {"cpu", "cuda"}


def test_everything_that_release_blocks_on_is_simulated_at_its_sizes() -> None:
    """A criterion that the policy comes to ask of samples must be drawn too, or the benchmark says nothing of it."""
    verdicts, found, _ = release_gates.Gates(
        read_policy(release_gates.POLICY), release_gates.Branch("x", "lossless", 0.01), 2, (1, 2), before=False
    ).verdicts()
    assert verdicts.size == 2
    assert {"thinking-structured", "answers-end", "fixed-prompts-freeform"} <= set(found)
