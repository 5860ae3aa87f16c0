"""What a reviewer's exception sets aside, and what it does not: by criterion, by slice, by canary."""

from datetime import date

import pytest

from q36eval.gate import CriterionVerdict, GateReport, Policy, Waiver, decide
from q36eval.gate.blessed_run import measured
from q36eval.records import Clusters, Lane, Measurement, ProbeFailure, ProbeName, Verdict
from tests.q36eval.gate.evidence import census, criterion, failure_rate, flips, named, questions, small_policy

DAY = date(2026, 5, 1)
EACH = 200
INTACT = census(ProbeName.WEIGHTS, "integrity_faults", 0)
CANARIES = ("discount", "invoice", "tools")


def failures(**broken: int) -> Measurement:
    """Two hundred questions of each of three canaries, so many of each broken; the reference breaks none."""
    rows = [int(number < broken.get(canary, 0)) for canary in CANARIES for number in range(EACH)]
    found = failure_rate(rows, [0] * len(rows), "structured")
    return named(found, questions(*((canary, EACH) for canary in CANARIES)))


def waiver(expires: date = DAY, owner: str = "eva", **scope: str) -> Waiver:
    return Waiver(owner=owner, reason="known, fixed in the next build", expires=expires, **scope)


def policy(**changes: object) -> Policy:
    """The failure rate of a lane, its must-pass prompts, and intact weights, in one lane."""
    of = {"lanes": ["structured"], "probe": "canaries", "slice": "structured"}
    failures = {"id": "failures", "metric": "failure_rate", "min_scored": 550}
    must_pass = {"id": "must-pass", "metric": "must_pass_flips", "min_scored": 20}
    intact = {"id": "intact", "probe": "weights", "metric": "integrity_faults", "slice": "all", "waivable": False}
    criteria = (
        criterion("max_count", 0, **(of | intact)),
        criterion("max_increase", 0.05, **(of | failures | changes)),
        criterion("max_count", 0, **(of | must_pass | changes)),
    )
    return Policy(name="p", criteria=criteria)


def decided(measured: Measurement, *waivers: Waiver, flipped: int = 0, **changes: object) -> GateReport:
    must_pass = flips({"discount": (12, flipped), "tools": (12, 0)})
    return decide(policy(**changes), [measured, must_pass, INTACT], waivers, on=DAY)


def waived_by(report: GateReport) -> dict[str, tuple[Waiver, ...]]:
    return {result.id: result.waived_by for result in report.criteria if result.waived}


def test_a_canary_is_excused_for_what_it_alone_caused() -> None:
    canary = waiver(canary="discount")
    broken = failures(discount=90)
    assert decided(broken, flipped=1).verdict is Verdict.FAIL
    report = decided(broken, canary, flipped=1)
    assert (report.verdict, report.exit_code, report.headline) == (Verdict.PASS, 0, "PASS with waivers")
    assert waived_by(report) == {"failures": (canary,), "must-pass": (canary,)}
    assert {r.verdict for r in report.criteria if r.waived} == {CriterionVerdict.FAIL}, "what was found stays visible"
    assert report.waived == report.lanes[0].waived == ("failures", "must-pass")
    assert waived_by(decided(broken, waiver(canary="discount", criterion="failures"), flipped=1)).keys() == {"failures"}


@pytest.mark.parametrize("others", [60, 12])
def test_what_other_canaries_show_is_not_excused_nor_what_nobody_knows(others: int) -> None:
    """Without the waived canary 60 of 400 are broken, which fails, and 12 are 3 %, which proves neither."""
    report = decided(failures(discount=90, invoice=others), waiver(canary="discount"))
    assert (report.verdict, waived_by(report)) == (Verdict.FAIL, {})
    (note,) = report.notes
    assert "canary discount by eva" in note
    assert "failures" in note


def test_waivers_of_canaries_combine_and_only_those_needed_are_named() -> None:
    broken = failures(discount=90, invoice=60)
    both = (waiver(canary="discount"), waiver(canary="invoice", owner="jan"))
    assert [decided(broken, one).verdict for one in both] == [Verdict.FAIL, Verdict.FAIL]
    report = decided(broken, *both, waiver(canary="tools"))
    assert report.verdict is Verdict.PASS
    assert waived_by(report) == {"failures": both}
    # of two waivers of the same the later to expire is named
    soon, late = waiver(criterion="failures"), waiver(criterion="failures", expires=date(2026, 6, 1), owner="jan")
    for order in ([soon, late], [late, soon]):
        assert waived_by(decided(failures(discount=90), *order)) == {"failures": (late,)}


def test_a_canary_is_excused_against_the_blessed_run_too() -> None:
    against = policy().criteria[1].margin.model_copy(update={"against": "blessed"})
    drift = policy().criteria[1].model_copy(update={"margin": against})
    held = policy().model_copy(update={"criteria": (policy().criteria[0], drift)})

    def verdict(broken: Measurement) -> Verdict:
        waivers = [waiver(canary="discount")]
        return decide(held, [broken, INTACT], waivers, on=DAY, blessed=[failures(discount=5, invoice=60)]).verdict

    assert verdict(failures(discount=90, invoice=60)) is Verdict.PASS, "the other was accepted as it is"
    assert verdict(failures(discount=90, invoice=120)) is Verdict.FAIL


def test_a_rest_too_small_to_judge_is_no_excuse() -> None:
    """Errored questions of the rest weigh more, the fewer it holds: 5 of 600 are below 1 %, 5 of 400 above."""
    found = failures(discount=90)
    columns = found.clusters.model_dump()
    rows = range(3 * EACH - 5, 3 * EACH)
    columns["units"] = tuple(0 if row in rows else 1 for row in range(3 * EACH))
    columns["errored"] = tuple(int(row in rows) for row in range(3 * EACH))
    report = decided(measured(found, Clusters(**columns), found.estimator), waiver(canary="discount"))
    assert (report.verdict, waived_by(report)) == (Verdict.FAIL, {})


def test_evidence_without_names_does_not_know_its_canaries() -> None:
    bare = failures(discount=90)
    bare = bare.model_copy(update={"clusters": bare.clusters.model_copy(update={"names": None})})
    report = decided(bare, waiver(canary="discount", criterion="failures"))
    assert report.verdict is Verdict.FAIL
    assert "no evidence that it concerns is named after that canary" in report.notes[0]


def test_a_slice_is_excused_for_every_criterion_over_it_and_everything_is_no_slice() -> None:
    sliced = waiver(slice="structured")
    report = decided(failures(discount=90), sliced, flipped=1)
    assert waived_by(report) == {"failures": (sliced,), "must-pass": (sliced,)}
    everywhere = policy(slice="all")
    of_all = [m.model_copy(update={"slice": "all"}) for m in (failures(discount=90), flips({"a": (25, 0)}), INTACT)]
    assert decide(everywhere, of_all, [waiver(slice="all")], on=DAY).verdict is Verdict.FAIL
    assert decide(everywhere, of_all, [waiver(slice="all", criterion="failures")], on=DAY).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ({"criterion": "mmul"}, "the policy has no such criterion"),
        ({"criterion": "failures", "slice": "freeform"}, "the policy judges no such slice"),
        ({"canary": "discuont"}, "no evidence that it concerns is named after that canary"),
        ({"criterion": "failures", "slice": "structured"}, None),
    ],
)
def test_a_waiver_that_names_nothing_says_so(scope: dict[str, str], words: str | None) -> None:
    report = decided(failures(discount=90), waiver(**scope))
    assert (report.verdict is Verdict.PASS) == (words is None)
    assert [note for note in report.notes if words is None or words not in note] == []


@pytest.mark.parametrize("scope", [{"slice": "structured"}, {"canary": "discount"}, {"criterion": "failures"}])
def test_no_scope_excuses_what_is_expired_unwaivable_or_not_measured(scope: dict[str, str]) -> None:
    broken = failures(discount=90)
    assert decided(broken, waiver(**scope, expires=date(2026, 4, 30))).verdict is Verdict.FAIL
    assert "expired after 2026-04-30" in decided(broken, waiver(**scope, expires=date(2026, 4, 30))).notes[0]
    refused = decided(broken, waiver(**scope), waivable=False)
    assert refused.verdict is Verdict.FAIL
    assert "the policy lets nobody waive" in refused.notes[0]
    crash = ProbeFailure(probe=ProbeName.CANARIES, reason="killed", kind="crashed")
    crashed = decide(policy(), [broken, INTACT], [waiver(**scope)], [crash], on=DAY)
    assert (crashed.verdict, crashed.exit_code, waived_by(crashed)) == (Verdict.INCONCLUSIVE, 4, {})
    assert any("a missing measurement cannot be waived" in note for note in crashed.notes)


def test_where_a_lane_is_left_with_nothing_the_whole_does_not_pass() -> None:
    tools = policy().criteria[1].model_copy(update={"id": "only"})
    whole = small_policy(criteria=(tools, small_policy().criteria[2].model_copy(update={"lanes": (Lane.FREEFORM,)})))
    report = decide(whole, [failures(discount=90), INTACT], [waiver(criterion="only")], on=DAY)
    assert {lane.lane: lane.verdict for lane in report.lanes} == {"structured": "INCONCLUSIVE", "freeform": "PASS"}
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert report.notes == ("lane structured has no blocking criterion left that was not waived",)


@pytest.mark.parametrize("scope", [{"canary": "discount"}, {"criterion": "must-pass"}, {"slice": "structured"}])
def test_a_count_that_was_not_finished_cannot_be_waived(scope: dict[str, str]) -> None:
    """One flip among ten of fifty-six prompts fails the branch; what the others would have shown nobody accepted."""
    must_pass = policy().criteria[2].model_copy(update={"min_scored": 51})
    asked = policy().model_copy(update={"criteria": (policy().criteria[0], must_pass)})
    few, all_of_them = flips({"discount": (2, 1), "invoice": (8, 0)}), flips({"discount": (2, 1), "invoice": (54, 0)})
    judged = [decide(asked, [found, INTACT], [waiver(**scope)], on=DAY) for found in (few, all_of_them)]
    crash = ProbeFailure(probe=ProbeName.CANARIES, reason="killed", kind="crashed")
    judged.append(decide(asked, [all_of_them, INTACT], [waiver(**scope)], [crash], on=DAY))
    assert [report.verdict for report in judged] == [Verdict.FAIL, Verdict.PASS, Verdict.FAIL]
    assert "10 items were scored; the policy requires 51" in judged[0].notes[0]
    assert "the count was not finished (its probe broke off)" in judged[2].notes[0]
