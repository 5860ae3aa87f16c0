"""The report as JUnit XML: red in every pipeline exactly when the gate does not pass."""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import TYPE_CHECKING

from q36eval.gate.noise import has_floor
from q36eval.gate.report import CriterionResult, CriterionVerdict, GateReport
from q36eval.records import Measurement, Verdict
from q36eval.reports._text import figure_text, floor_text, interval_text, margin_text, plain, why_text

if TYPE_CHECKING:
    from q36eval.history.records import RunRecord


def to_junit(report: GateReport, run: "RunRecord | None" = None, _measurements: Sequence[Measurement] = ()) -> str:
    """One test case per criterion and per lane, and one for the verdict.

    Blocking: FAIL and INCONCLUSIVE are failures (type = verdict), NOT_MEASURED is an error. Advisory or waived: skipped
    with the reason.
    """
    branch = "branch" if run is None else f"{run.family}.{run.branch}"
    suite = ET.Element("testsuite", name=plain(f"q36eval gate {branch}"))
    if run is not None:
        suite.set("timestamp", run.started.strftime("%Y-%m-%dT%H:%M:%S"))
    _properties(suite, report, run)
    for result in report.criteria:
        _criterion_case(suite, f"{branch}.{result.probe}", result)
    for lane in report.lanes:
        _verdict_case(suite, branch, f"lane {lane.lane}", lane.verdict, lane.headline, lane.decisive)
    _verdict_case(suite, branch, "verdict", report.verdict, report.headline, report.decisive)
    for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _properties(suite: ET.Element, report: GateReport, run: "RunRecord | None") -> None:
    properties = ET.SubElement(suite, "properties")
    named = {"verdict": report.headline, "exit_code": str(report.exit_code), "policy": report.policy}
    if run is not None:
        named["run"] = run.id
    for name, value in named.items():
        ET.SubElement(properties, "property", name=name, value=plain(value))


def _criterion_case(suite: ET.Element, classname: str, result: CriterionResult) -> None:
    case = ET.SubElement(suite, "testcase", classname=plain(classname), name=plain(result.id))
    interval = interval_text(result.margin, result.figure_interval)
    rule = margin_text(result.margin, result.unit)
    figures = f"{result.metric}[{result.slice}]: {figure_text(result)} {interval}, margin {rule}"
    if has_floor(result.probe, result.metric):
        figures += f", floor {floor_text(result)}"
    ET.SubElement(case, "system-out").text = plain(figures)
    if result.verdict is CriterionVerdict.PASS:
        return
    message = plain(f"{result.verdict}: {why_text(result)}")
    if result.tier == "advisory" or result.waived:
        ET.SubElement(case, "skipped", message=message)
    else:
        tag = "error" if result.verdict is CriterionVerdict.NOT_MEASURED else "failure"
        ET.SubElement(case, tag, type=str(result.verdict), message=message).text = plain(figures)


def _verdict_case(
    suite: ET.Element, branch: str, name: str, verdict: Verdict, headline: str, decisive: tuple[str, ...]
) -> None:
    case = ET.SubElement(suite, "testcase", classname=plain(branch), name=name)
    if verdict is not Verdict.PASS:
        message = f"{headline}: {', '.join(decisive)}" if decisive else headline
        ET.SubElement(case, "failure", type=str(verdict), message=plain(message))
