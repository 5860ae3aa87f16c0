"""When enough was asked: only when the decision on that very evidence is made, and would stand."""

from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from q36eval.gate import CriterionVerdict, PolicyRule, Waiver, decide
from q36eval.gate.sequential import failed_lanes
from q36eval.records import Lane, ProbeName, Verdict
from tests.q36eval.gate.evidence import accuracy, census, failure_rate, in_blocks, named, small_evidence, small_policy

DECIDED = (CriterionVerdict.PASS, CriterionVerdict.FAIL)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 120), st.integers(0, 30), st.integers(120, 400), st.integers(0, 60))
def test_what_is_settled_is_what_the_decision_says_whatever_the_other_criteria_show(
    lost: int, gained: int, items: int, tools_broken: int
) -> None:
    """Holm's correction looks at all criteria: the rule must not call settled what another's p-value could undo."""
    policy = small_policy()
    measured = in_blocks(accuracy([0] * lost + [1] * (items - lost), [1] * (items - gained) + [0] * gained))
    settled = PolicyRule(policy).resolved_early([measured])
    report = decide(
        policy, [measured, failure_rate([1] * tools_broken + [0] * (200 - tools_broken), [0] * 200, "tools")]
    )
    mmlu = next(result for result in report.criteria if result.id == "mmlu")
    if settled:
        assert settled == {measured.key}
        assert mmlu.verdict in DECIDED or mmlu.anomalous


def test_a_clear_loss_and_a_clear_pass_are_settled_and_a_close_one_is_not() -> None:
    rule = PolicyRule(small_policy())
    assert rule.resolved_early([in_blocks(accuracy([1] * 400, [1] * 400))])
    assert rule.resolved_early([in_blocks(accuracy([0] * 200 + [1] * 200, [1] * 400))])
    assert not rule.resolved_early([in_blocks(accuracy([0] * 18 + [1] * 182, [1] * 200))])
    assert not rule.resolved_early([accuracy([1] * 400, [1] * 400)]), "it was not laid out beforehand"
    assert rule.judged(ProbeName.EVALS) == {"evals.accuracy[mmlu]"}


BOTH = {Lane.STRUCTURED, Lane.FREEFORM}
ALL_PROBES = frozenset(ProbeName)
DAY = date(2030, 1, 1)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    lost=st.integers(0, 60), broken=st.integers(0, 60), faults=st.integers(0, 1), taken=st.integers(0, 3),
    excused=st.sampled_from([None, "mmlu", "tools", "intact"]),
)  # fmt: skip
def test_a_lane_that_failed_early_fails_whatever_comes_after(
    lost: int, broken: int, faults: int, taken: int, excused: str | None
) -> None:
    evidence = small_evidence(lost, broken, faults)[::-1]
    seen, to_come = evidence[:taken], evidence[taken:]
    waivers = [] if excused is None else [Waiver(owner="eva", reason="known", criterion=excused, expires=DAY)]
    complete = {measured.probe for measured in seen}
    failed = failed_lanes(small_policy(), seen, complete, waivers, DAY)
    for rest in ([], to_come, [accuracy([1] * 200, [1] * 200)] if taken < 3 else []):
        lanes = {lane.lane: lane for lane in decide(small_policy(), [*seen, *rest], waivers, on=DAY).lanes}
        for lane, names in failed.items():
            assert lanes[lane].verdict is Verdict.FAIL
            assert set(names) <= set(lanes[lane].decisive)


def test_one_counted_fault_settles_its_lanes_before_its_probe_is_done_and_a_rate_only_after() -> None:
    policy = small_policy()
    fault = census(ProbeName.WEIGHTS, "integrity_faults", 1)
    assert set(failed_lanes(policy, [fault], [])) == BOTH
    broken = failure_rate([1] * 100 + [0] * 100, [0] * 200, "tools")
    assert failed_lanes(policy, [broken], [ProbeName.WEIGHTS]) == {}
    assert failed_lanes(policy, [broken], [ProbeName.CANARIES]) == {Lane.STRUCTURED: ("tools",)}
    assert PolicyRule(policy).decided([broken], [ProbeName.CANARIES]) == ()
    ruined = in_blocks(accuracy([0] * 200 + [1] * 200, [1] * 400))
    assert PolicyRule(policy).decided([broken, ruined], [ProbeName.CANARIES]) == ("mmlu", "tools")


def test_what_a_waiver_may_set_aside_settles_nothing_while_it_is_in_force() -> None:
    broken = failure_rate([1] * 100 + [0] * 100, [0] * 200, "tools")
    for scope in ({"criterion": "tools"}, {"slice": "tools"}, {"canary": "tool-order"}):
        waiver = Waiver(owner="eva", reason="known", expires=DAY, **scope)
        assert failed_lanes(small_policy(), [broken], ALL_PROBES, [waiver], DAY) == {}
        assert failed_lanes(small_policy(), [broken], ALL_PROBES, [waiver], date(2030, 1, 2))
    other = Waiver(owner="eva", reason="known", expires=DAY, criterion="mmlu")
    assert failed_lanes(small_policy(), [broken], ALL_PROBES, [other], DAY)


def test_a_policy_that_refuses_what_is_not_proven_settles_it_once_all_was_asked() -> None:
    mmlu, tools, intact = small_policy().criteria
    close = failure_rate([1] * 16 + [0] * 184, [0] * 200, "tools")
    policy = small_policy(criteria=(mmlu, tools.model_copy(update={"on_inconclusive": "fail"}), intact))
    assert failed_lanes(small_policy(), [close], ALL_PROBES) == {}
    assert failed_lanes(policy, [close], ALL_PROBES) == {Lane.STRUCTURED: ("tools",)}
    assert failed_lanes(policy, [close], []) == {}


def test_what_is_held_against_the_blessed_run_is_settled_against_it() -> None:
    """Half of what the reference knows, as when it was accepted: a clear pass; and a clear loss where all was known."""
    names = [f"item-{number}" for number in range(400)]
    half = in_blocks(named(accuracy([0] * 200 + [1] * 200, [1] * 400), names))
    whole = in_blocks(named(accuracy([1] * 400, [1] * 400), names))
    mmlu, tools, intact = small_policy().criteria
    drift = mmlu.model_copy(
        update={"margin": mmlu.margin.model_copy(update={"against": "blessed"}), "lanes": tuple(BOTH)}
    )
    policy = small_policy(criteria=(drift, tools, intact))
    assert not PolicyRule(policy).resolved_early([half])
    for then, verdict, failed in ((half, CriterionVerdict.PASS, ()), (whole, CriterionVerdict.FAIL, ("mmlu",))):
        rule = PolicyRule(policy, blessed=(then,))
        assert rule.resolved_early([half]) == {half.key}
        assert rule.decided([half], []) == failed
        (result,) = (r for r in decide(policy, [half], blessed=[then]).criteria if r.id == "mmlu")
        assert result.verdict is verdict
