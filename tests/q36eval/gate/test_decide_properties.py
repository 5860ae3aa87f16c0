"""What must hold of `decide` whatever the policy and the evidence: drawn from every margin kind, both lanes, errored
items, noise floors, blessed runs and waivers of every scope."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from q36eval.gate import Criterion, CriterionVerdict, GateReport, Margin, Policy, SignOff, Waiver, decide
from q36eval.records import Lane, Measurement, ProbeFailure, ProbeName, Verdict
from tests.q36eval.gate.drawn import KINDS, WORST, Builder, Kind
from tests.q36eval.gate.evidence import census

pytestmark = pytest.mark.long

DAY = date(2026, 5, 1)
GOODNESS = {"FAIL": 0, "INCONCLUSIVE": 1, "NOT_MEASURED": 1, "PASS": 2}
CANARIES = {"failures": "abc", "failures-drift": "abc", "must-pass": "ab", "margins": "ab"}
"""Of each criterion over canaries, those that its evidence holds."""


@dataclass(frozen=True)
class Case:
    """A policy, and what is measured for it: the severity and the errored items of each builder of evidence."""

    policy: Policy
    kinds: tuple[Kind, ...]
    severity: dict[Builder, int]
    errored: dict[Builder, int]
    waivers: tuple[Waiver, ...]
    floor: float | None
    accepted: int
    """The severity at which the blessed run was accepted."""

    @property
    def builders(self) -> list[Builder]:
        return list(dict.fromkeys(kind.build for kind in self.kinds))

    @property
    def measurements(self) -> list[Measurement]:
        found = [build(self.severity[build], self.errored[build]) for build in self.builders]
        if self.floor is not None:
            found.append(
                census(ProbeName.KL, "kl_divergence_noise_floor", 0).model_copy(
                    update={"value": self.floor, "note": "x"}
                )
            )
        return found

    @property
    def blessed(self) -> list[Measurement]:
        return [build(self.accepted, 0) for build in dict.fromkeys(kind.build for kind in self.kinds if kind.blessed)]

    def decide(self, measurements: Sequence[Measurement] | None = None, **given: object) -> GateReport:
        measured = self.measurements if measurements is None else measurements
        return decide(self.policy, measured, self.waivers, **({"on": DAY, "blessed": self.blessed} | given))


LANES = st.sampled_from([(Lane.STRUCTURED,), (Lane.FREEFORM,), (Lane.FREEFORM, Lane.STRUCTURED)])


@st.composite
def criteria(draw: st.DrawFn, kind: Kind) -> Criterion:
    return Criterion(
        id=kind.id,
        probe=kind.probe,
        metric=kind.metric,
        slice=kind.slice,
        margin=Margin(
            kind=kind.margin,
            value=draw(st.sampled_from(kind.values)),
            against="blessed" if kind.blessed else "reference",
            source="test",
        ),
        lanes=draw(LANES),
        tier=draw(st.sampled_from(["blocking", "blocking", "advisory"])),
        confidence=draw(st.sampled_from([0.95, 0.975])),
        min_scored=draw(st.sampled_from([1, 20])),
        on_inconclusive=draw(st.sampled_from(["inconclusive", "inconclusive", "fail"])),
        waivable=draw(st.sampled_from([True, True, False])),
    )


def waivers(kinds: Sequence[Kind]) -> st.SearchStrategy[Waiver]:
    """Of every scope, most of them of something that the policy judges."""
    ids, slices = [kind.id for kind in kinds], sorted({kind.slice for kind in kinds})
    scopes = st.one_of(
        st.fixed_dictionaries({"criterion": st.sampled_from([*ids, "no-such"])}),
        st.fixed_dictionaries({"slice": st.sampled_from(slices)}),
        st.fixed_dictionaries({"canary": st.sampled_from("aab")}),
        st.fixed_dictionaries({"criterion": st.sampled_from(ids), "canary": st.sampled_from("ab")}),
        st.fixed_dictionaries({"slice": st.sampled_from(slices), "canary": st.sampled_from("ab")}),
    )
    days = st.sampled_from([DAY, date(2027, 1, 1), date(2026, 4, 30)])
    return st.builds(
        lambda scope, owner, expires: Waiver(owner=owner, reason="x", expires=expires, **scope),
        scopes,
        st.sampled_from(["eva", "jan"]),
        days,
    )


@st.composite
def cases(draw: st.DrawFn, chosen: Sequence[Kind] = KINDS, fewest: int = 1, least_severity: int = 0) -> Case:
    kinds = draw(st.lists(st.sampled_from(chosen), min_size=fewest, max_size=4, unique_by=lambda kind: kind.id))
    drawn = [draw(criteria(kind)) for kind in kinds]
    guarded = {lane for criterion in drawn if criterion.tier == "blocking" for lane in criterion.lanes}
    if not all(set(criterion.lanes) <= guarded for criterion in drawn):
        drawn = [criterion.model_copy(update={"tier": "blocking"}) for criterion in drawn]
    builders = list(dict.fromkeys(kind.build for kind in kinds))
    may_error = {kind.build for kind in kinds if kind.may_error}
    return Case(
        policy=Policy(name="drawn", criteria=tuple(drawn)),
        kinds=tuple(kinds),
        severity={build: draw(st.integers(least_severity, WORST)) for build in builders},
        errored={build: draw(st.integers(0, 3)) if build in may_error else 0 for build in builders},
        waivers=tuple(draw(st.lists(waivers(kinds), max_size=3))),
        floor=draw(st.sampled_from([None, 0.001, 0.01])),
        accepted=draw(st.sampled_from([0, 0, 3])),
    )


ROUNDING = 1e-12
"""Of p-values, whose sums are made in another order."""

TAIL = 1e-3
"""Below this, far from any confidence, a bootstrap's p-values are those of its tail and need not keep their order."""

DOUBTED = "so a bound from them misses more often than it says"
"""Why a PASS is withheld that a heavy tail made doubtful: its p-value then stands at 1, and worse evidence, which
passes nothing either, may have one of its own. Of the verdicts the order holds all the same."""

drawing = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def by_id(report: GateReport) -> dict[str, CriterionVerdict]:
    return {result.id: result.verdict for result in report.criteria}


def goodness(report: GateReport) -> list[int]:
    return [GOODNESS[verdict] for verdict in (report.verdict, *(lane.verdict for lane in report.lanes))]


@drawing
@given(cases(), st.data())
def test_worse_evidence_never_improves_a_verdict(case: Case, data: st.DataObject) -> None:
    worse = {build: data.draw(st.integers(severity, WORST)) for build, severity in case.severity.items()}
    before, after = case.decide(), replace(case, severity=worse).decide()
    found, later = by_id(before), by_id(after)
    assert all(GOODNESS[later[name]] <= GOODNESS[verdict] for name, verdict in found.items())
    for was, now in zip(before.criteria, after.criteria, strict=True):
        if DOUBTED not in was.reason:
            assert max(TAIL, now.p_pass) >= max(TAIL, was.p_pass) - ROUNDING
        assert now.p_fail <= max(TAIL, was.p_fail) + ROUNDING
    # what was not measured stays so, but that counted faults are proven whatever else is missing
    assert all(later[name] is verdict for name, verdict in found.items() if verdict is CriterionVerdict.NOT_MEASURED)
    assert all(b >= a for b, a in zip(goodness(before), goodness(after), strict=True))
    assert before.exit_code == 0 or after.exit_code != 0


@drawing
@given(cases([kind for kind in KINDS if kind.may_error]), st.integers(1, 3))
def test_errors_never_decide_anything(case: Case, more: int) -> None:
    """An item that errored may have been anything: PASS and FAIL both hold only where they held without the error."""
    errored = {build: count + more for build, count in case.errored.items()}
    before, after = case.decide(), replace(case, errored=errored).decide()
    found = by_id(before)
    for was, now in zip(before.criteria, after.criteria, strict=True):
        assert now.p_pass >= was.p_pass - ROUNDING
        assert now.p_fail >= was.p_fail - ROUNDING
    refused = {c.id for c in case.policy.criteria if c.on_inconclusive == "fail"}
    for name, verdict in by_id(after).items():
        if verdict is CriterionVerdict.PASS or (verdict is CriterionVerdict.FAIL and name not in refused):
            assert found[name] is verdict
    assert after.verdict is not Verdict.PASS or before.verdict is Verdict.PASS


@drawing
@given(cases(), st.data())
def test_removing_a_measurement_never_turns_anything_into_pass(case: Case, data: st.DataObject) -> None:
    """But a noise floor, which is of the reference and only shown to refuse margins that are too tight."""
    case = replace(case, floor=None)
    measured, blessed = case.measurements, case.blessed
    gone = data.draw(st.sets(st.sampled_from([m.key for m in measured]), min_size=1))
    forgotten = data.draw(st.sets(st.sampled_from([m.key for m in blessed]))) if blessed else set()
    before = case.decide()
    after = case.decide(
        [m for m in measured if m.key not in gone], blessed=[m for m in blessed if m.key not in forgotten]
    )
    lacking = {c.id for c in case.policy.criteria if c.key in gone}
    lacking |= {c.id for c in case.policy.criteria if c.key in forgotten and c.margin.against == "blessed"}
    found = {result.id: result for result in after.criteria}
    assert all(found[name].verdict is CriterionVerdict.NOT_MEASURED and not found[name].waived for name in lacking)
    for was, now in zip(before.lanes, after.lanes, strict=True):
        needed = {c.id for c in case.policy.criteria if c.tier == "blocking" and now.lane in c.lanes}
        assert now.verdict is not Verdict.PASS or (was.verdict is Verdict.PASS and not needed & lacking)
    assert after.exit_code != 0 or (before.exit_code == 0 and after.verdict is Verdict.PASS)


@drawing
@given(cases(), st.integers(0, 2**32))
def test_no_order_is_of_any_matter(case: Case, seed: int) -> None:
    rng = random.Random(seed)
    failures = [
        ProbeFailure(probe=probe, reason=reason, kind="skipped") for probe in ("kl", "evals") for reason in ("a", "b")
    ]
    signed = [
        SignOff(owner=owner, reason="x", at=datetime(2026, 5, 1, tzinfo=UTC), report_sha256="0") for owner in "ab"
    ]
    floors = [case.measurements[-1].model_copy(update={"note": note}) for note in "ab"] if case.floor else []
    columns = [case.measurements + floors, case.blessed, list(case.waivers), failures, signed]
    reports = []
    for _ in range(2):
        measured, blessed, waived, failed, signatures = columns
        policy = case.policy.model_copy(update={"criteria": tuple(shuffled(case.policy.criteria, rng))})
        report = decide(policy, measured, waived, failed, on=DAY, blessed=blessed, sign_offs=signatures)
        reports.append(report.model_dump_json())
        columns = [shuffled(column, rng) for column in columns]
    assert reports[0] == reports[1]


def shuffled(values: Sequence[object], rng: random.Random) -> list[object]:
    return rng.sample(list(values), len(values))


@drawing
@given(cases(fewest=3, least_severity=2), st.data())
def test_a_waiver_changes_only_what_it_names(case: Case, data: st.DataObject) -> None:
    case = replace(case, waivers=case.waivers[:1])
    waiver = data.draw(waivers(case.kinds))
    before = case.decide()
    after = decide(case.policy, case.measurements, (*case.waivers, waiver), on=DAY, blessed=case.blessed)
    changed = set()
    for was, now in zip(before.criteria, after.criteria, strict=True):
        assert was.model_copy(update={"waived_by": now.waived_by}) == now, "what was found stays"
        if was != now:
            changed.add(now.id)
            assert waiver in now.waived_by
            assert waiver.expires >= DAY
            assert waiver.criterion in (None, now.id)
            assert waiver.slice in (None, now.slice)
            assert waiver.canary is None or waiver.canary in CANARIES.get(now.id, "")
            assert now.verdict in (CriterionVerdict.FAIL, CriterionVerdict.INCONCLUSIVE)
    lanes = {lane for result in after.criteria if result.id in changed for lane in result.lanes}
    for was, now in zip(before.lanes, after.lanes, strict=True):
        assert was == now or now.lane in lanes
    assert all(a >= b for b, a in zip(goodness(before), goodness(after), strict=True))
    assert {r.id for r in before.criteria if r.waived} <= {r.id for r in after.criteria if r.waived}


@drawing
@given(cases())
def test_the_same_evidence_read_back_from_json_gives_the_same_bytes(case: Case) -> None:
    def again(records: Sequence[Measurement]) -> list[Measurement]:
        return [Measurement.model_validate_json(record.model_dump_json()) for record in records]

    policy = Policy.model_validate_json(case.policy.model_dump_json())
    read = [Waiver.model_validate_json(waiver.model_dump_json()) for waiver in case.waivers]
    report = decide(policy, again(case.measurements), read, on=DAY, blessed=again(case.blessed))
    first = case.decide().model_dump_json()
    assert report.model_dump_json() == first
    assert GateReport.model_validate_json(first).model_dump_json() == first
