"""The report as JUnit XML: red in every pipeline exactly when the gate does not pass.

There is no one standard. What is written here is what the common readers agree on: a result comes before the output of
its test case, counts are those of the cases, the time of the run stands at the suite.
"""

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from q36eval.gate.noise import has_floor
from q36eval.gate.report import CriterionResult, CriterionVerdict
from q36eval.inert_text import SENTENCE, plain
from q36eval.records import Verdict
from q36eval.reports.document import Document
from q36eval.reports.story import answers_text, distance_text, names_text, notes, stage_text
from q36eval.reports.text import figure_text, floor_text, held_text, interval_text, margin_text, why_text

if TYPE_CHECKING:
    from q36eval.history.records import RunRecord

LIMIT = 4000
"""Characters of a case's output; messages stay one line of `plain` text."""


def to_junit(document: Document) -> str:
    """One test case per criterion and per lane, and one for the verdict.

    Blocking: FAIL and INCONCLUSIVE are failures (type = verdict), NOT_MEASURED is an error. Advisory or waived: skipped
    with the reason.
    """
    report, run = document.report, document.run
    branch = "branch" if run is None else f"{run.family}.{run.branch}"
    suites = ET.Element("testsuites", name="q36eval")
    suite = ET.SubElement(suites, "testsuite", name=plain(f"q36eval gate {branch}"))
    _times(suite, run)
    _properties(suite, document)
    for result in report.criteria:
        _criterion_case(suite, f"{branch}.{result.probe}", result)
    for lane in report.lanes:
        _verdict_case(
            suite, branch, f"lane {lane.lane}", lane.verdict, lane.headline, names_text(report, lane.decisive)
        )
    _verdict_case(suite, branch, "verdict", report.verdict, report.headline, names_text(report, report.decisive))
    for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))
    for kind in ("tests", "failures", "errors"):
        suites.set(kind, suite.get(kind, "0"))
    _output(
        suite,
        [
            *document.layer_lines,
            *(f"stage {stage.name}: {stage_text(stage, report)}" for stage in report.stages),
            *notes(report, run),
        ],
    )
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _times(suite: ET.Element, run: "RunRecord | None") -> None:
    if run is None:
        return
    suite.set("timestamp", run.started.strftime("%Y-%m-%dT%H:%M:%S"))
    if run.finished is not None:
        suite.set("time", f"{(run.finished - run.started).total_seconds():.3f}")


def _properties(suite: ET.Element, document: Document) -> None:
    report, run, layer = document.report, document.run, document.layer
    properties = ET.SubElement(suite, "properties")
    named = {"verdict": report.headline, "exit_code": str(report.exit_code), "policy": report.policy}
    if run is not None:
        named["run"] = run.id
        named |= {} if run.imported is None else {"imported": run.imported.isoformat()}
    named |= {} if layer is None else {"layer_at_fault": layer.at_fault or "not told apart", "engine": layer.engine}
    for name, value in named.items():
        ET.SubElement(properties, "property", name=name, value=plain(value))


def _criterion_case(suite: ET.Element, classname: str, result: CriterionResult) -> None:
    case = ET.SubElement(suite, "testcase", classname=plain(classname), name=plain(f"{result.id}: {result.heading}"))
    figures = plain(_figures(result), SENTENCE)
    _add_result(case, result, figures)
    answers = plain(answers_text(result), LIMIT)
    ET.SubElement(case, "system-out").text = f"{figures}\n{answers}" if answers else figures


def _figures(result: CriterionResult) -> str:
    interval = interval_text(result.margin, result.figure_interval)
    rule = margin_text(result.margin, result.unit)
    figures = f"{result.metric}[{result.slice}]: {figure_text(result)} {interval}, margin {rule}"
    if has_floor(result.probe, result.metric):
        figures += f", floor {floor_text(result)}"
    return "; ".join(filter(None, (figures, distance_text(result), held_text(result))))


def _add_result(case: ET.Element, result: CriterionResult, figures: str) -> None:
    if result.verdict is CriterionVerdict.PASS:
        return
    message = plain(f"{result.verdict}: {why_text(result)}")
    if result.tier == "advisory" or result.waived:
        ET.SubElement(case, "skipped", message=message)
    else:
        tag = "error" if result.verdict is CriterionVerdict.NOT_MEASURED else "failure"
        ET.SubElement(case, tag, type=str(result.verdict), message=message).text = figures


def _verdict_case(suite: ET.Element, branch: str, name: str, verdict: Verdict, headline: str, decisive: str) -> None:
    case = ET.SubElement(suite, "testcase", classname=plain(branch), name=name)
    if verdict is not Verdict.PASS:
        message = f"{headline}: {decisive}" if decisive else headline
        ET.SubElement(case, "failure", type=str(verdict), message=plain(message))


def _output(suite: ET.Element, lines: list[str]) -> None:
    if lines:
        ET.SubElement(suite, "system-out").text = "\n".join(plain(line) for line in lines)[:LIMIT]
