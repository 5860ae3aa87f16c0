"""An inspection as measurements: each finding counted once under its own metric, nothing unjudged counted as clean."""

from q36eval.checkpoints.inspection import Inspection, Section, Severity
from q36eval.checkpoints.inspection.findings import Finding
from q36eval.gate.margins import schemes_found
from q36eval.run.weights import measurements


def finding(section: Section, severity: Severity = Severity.BLOCKING) -> Finding:
    return Finding(section=section, rule="rule", severity=severity, subject="a.weight", message="is wrong.")


def inspection(*findings: Finding, measured: tuple[Section, ...] = tuple(Section), unbounded: int = 0) -> Inspection:
    return Inspection(
        checkpoint="x",
        reference="y",
        findings=findings,
        measured=measured,
        compared_weights=200,
        unbounded_weights=unbounded,
    )


def test_blocking_findings_are_counted_under_their_section_and_named() -> None:
    found = measurements(
        inspection(finding(Section.WEIGHTS), finding(Section.WEIGHTS), finding(Section.COVERAGE, Severity.ADVISORY)),
        more_faults=["the loader refused it"],
    )
    values = {measurement.metric: measurement.value for measurement in found}
    assert values == {
        "integrity_faults": 1,
        "coverage_faults": 0,
        "errors_beyond_scheme": 2,
        "configuration_differences": 0,
        "served_differences": 0,
    }
    notes = {measurement.metric: measurement.note for measurement in found}
    assert "a.weight: is wrong." in notes["errors_beyond_scheme"]
    assert notes["integrity_faults"] == "the loader refused it"


def test_what_could_not_be_judged_is_no_measurement_and_what_has_no_bound_or_scheme_is_not_counted() -> None:
    found = measurements(inspection(finding(Section.INTEGRITY), measured=(Section.INTEGRITY,)))
    assert [measurement.metric for measurement in found] == ["integrity_faults"]
    counts = {measurement.metric: measurement.counts for measurement in measurements(inspection(unbounded=50))}
    assert (counts["errors_beyond_scheme"].scored, counts["errors_beyond_scheme"].errored) == (150, 50)
    # schemes are counted so that the gate finds them, and unknown ones are not
    counted = inspection().model_copy(update={"schemes": {"FP8_BLOCK": 1, "NVFP4": 134}})
    assert schemes_found(measurements(counted)) == {"FP8_BLOCK", "NVFP4"}
    assert schemes_found(measurements(inspection().model_copy(update={"schemes": {}}))) == frozenset()
    assert schemes_found(measurements(inspection())) is None
