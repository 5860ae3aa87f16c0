"""The report as JUnit XML: red in every pipeline exactly when the gate does not pass.

There is no one standard. What is written here is what the common readers agree on: a result comes before the output of
its test case, counts are those of the cases, the time of the run stands at the suite.
"""

from junitparser import Error, Failure, JUnitXml, Skipped, SystemOut, TestCase, TestSuite

from q36eval.gate.noise import has_floor
from q36eval.gate.report import CriterionResult, CriterionVerdict, GateReport, LaneResult
from q36eval.inert_text import SENTENCE, plain
from q36eval.records import Verdict
from q36eval.reports.document import Document
from q36eval.reports.story import answers_text, distance_text, names_text, notes, stage_text
from q36eval.reports.text import figure_text, floor_text, held_text, interval_text, margin_text, why_text

LIMIT = 4000
"""Characters of a case's output; messages stay one line of `plain` text."""


def to_junit(document: Document) -> str:
    """One test case per criterion and per lane, and one for the verdict.

    Blocking: FAIL and INCONCLUSIVE are failures (type = verdict), NOT_MEASURED is an error. Advisory, waived or not
    judged: skipped with the reason.
    """
    report, run = document.report, document.run
    branch = plain("branch" if run is None else f"{run.family}.{run.branch}")
    suite = TestSuite(f"q36eval gate {branch}")
    for name, value in _properties(document).items():
        suite.add_property(name, plain(value))
    suite.add_testcases([_criterion_case(branch, result) for result in report.criteria])
    suite.add_testcases([_verdict_case(branch, f"lane {lane.lane}", report, lane) for lane in report.lanes])
    suite.add_testcase(_verdict_case(branch, "verdict", report, report))
    if run is not None:
        suite.timestamp = run.started.strftime("%Y-%m-%dT%H:%M:%S")
        suite.time = 0.0 if run.finished is None else round((run.finished - run.started).total_seconds(), 3)
    stages = (f"stage {stage.name}: {stage_text(stage, report)}" for stage in report.stages)
    lines = [plain(line) for line in (*document.layer_lines, *stages, *notes(report, run))]
    if lines:
        suite.append(SystemOut("\n".join(lines)[:LIMIT]))
    suites = JUnitXml("q36eval")
    suites.tests, suites.failures, suites.errors = suite.tests, suite.failures, suite.errors
    suites.append(suite)
    text: bytes = suites.tostring()
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text.decode()}\n'


def _properties(document: Document) -> dict[str, str]:
    report, run, layer = document.report, document.run, document.layer
    named = {"verdict": report.headline, "exit_code": str(report.exit_code), "policy": report.policy}
    if run is not None:
        named["run"] = run.id
        named |= {} if run.imported is None else {"imported": run.imported.isoformat()}
    return named | (
        {} if layer is None else {"layer_at_fault": layer.at_fault or "not told apart", "engine": layer.engine}
    )


def _criterion_case(branch: str, result: CriterionResult) -> TestCase:
    case = TestCase(plain(f"{result.id}: {result.heading}"), f"{branch}.{result.probe}")
    figures, verdict = plain(_figures(result), SENTENCE), str(result.verdict)
    message = plain(f"{verdict}: {why_text(result)}")
    if result.verdict is not CriterionVerdict.PASS:
        if result.tier == "advisory" or result.waived or result.verdict is CriterionVerdict.NOT_JUDGED:
            case.result = Skipped(message)
        else:
            kind = Error if result.verdict is CriterionVerdict.NOT_MEASURED else Failure
            case.result = kind(message, verdict)
            case.result[0].text = figures
    case.system_out = "\n".join(filter(None, (figures, plain(answers_text(result), LIMIT))))
    return case


def _figures(result: CriterionResult) -> str:
    interval = interval_text(result.margin, result.figure_interval)
    rule = margin_text(result.margin, result.unit)
    figures = f"{result.metric}[{result.slice}]: {figure_text(result)} {interval}, margin {rule}"
    if has_floor(result.probe, result.metric):
        figures += f", floor {floor_text(result)}"
    return "; ".join(filter(None, (figures, distance_text(result), held_text(result))))


def _verdict_case(branch: str, name: str, report: GateReport, of: GateReport | LaneResult) -> TestCase:
    case = TestCase(name, branch)
    if of.verdict is not Verdict.PASS:
        message = ": ".join(filter(None, (of.headline, names_text(report, of.decisive))))
        skipped = of.verdict is Verdict.NOT_JUDGED  # where the lane is required, the verdict itself fails
        case.result = Skipped(plain(message)) if skipped else Failure(plain(message), str(of.verdict))
    return case
