"""The report as JUnit XML: red in every pipeline exactly when the gate does not pass.

There is no one standard. What is written here is what the common readers agree on: a result comes before the output of
its test case, counts are those of the cases, the time of the run stands at the suite.
"""

from junitparser import Error, Failure, JUnitXml, Skipped, SystemOut, TestCase, TestSuite

from q36eval.gate.noise import has_floor
from q36eval.gate.report import UNMEASURED, CriterionResult, CriterionVerdict
from q36eval.inert_text import SENTENCE, plain
from q36eval.records import Verdict
from q36eval.reports.document import Document
from q36eval.reports.story import answers_text, distance_text, names_text, notes, stage_text
from q36eval.reports.text import figure_text, floor_text, held_text, interval_text, margin_text, why_text

LIMIT = 4000
"""Characters of a case's output; messages stay one line of `plain` text."""


def to_junit(document: Document) -> str:
    """One test case per criterion, and one for the verdict.

    What decided is a failure (type = verdict), or an error where it was not measured; whatever else did not pass is
    skipped with the reason. The verdict fails only where no criterion decided it. Lanes are properties.
    """
    report, run = document.report, document.run
    branch = plain("branch" if run is None else f"{run.family}.{run.branch}")
    suite = TestSuite(f"q36eval gate {branch}")
    for name, value in _properties(document).items():
        suite.add_property(name, plain(value))
    suite.add_testcases([_criterion_case(branch, result, result.id in report.decisive) for result in report.criteria])
    verdict = TestCase("verdict", branch)
    if report.verdict is not Verdict.PASS:
        message = plain(": ".join(filter(None, (report.headline, names_text(report, report.decisive)))))
        verdict.result = Skipped(message) if report.decisive else Failure(message, str(report.verdict))
    suite.add_testcase(verdict)
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
    named |= {f"lane {lane.lane}": lane.headline for lane in report.lanes}
    if run is not None:
        named["run"] = run.id
        named |= {} if run.imported is None else {"imported": run.imported.isoformat()}
    return named | (
        {} if layer is None else {"layer_at_fault": layer.at_fault or "not told apart", "engine": layer.engine}
    )


def _criterion_case(branch: str, result: CriterionResult, decided: bool) -> TestCase:
    case = TestCase(plain(f"{result.id}: {result.heading}"), f"{branch}.{result.probe}")
    figures, verdict = plain(_figures(result), SENTENCE), str(result.verdict)
    message = plain(f"{verdict}: {why_text(result)}")
    if result.verdict is not CriterionVerdict.PASS:
        if not decided:
            case.result = Skipped(message)
        else:
            kind = Error if result.verdict in UNMEASURED else Failure
            case.result = kind(message, verdict)
            case.result[0].text = figures
    case.system_out = "\n".join(filter(None, (figures, plain(answers_text(result), LIMIT))))
    return case


def _figures(result: CriterionResult) -> str:
    interval = interval_text(result)
    rule = margin_text(result.margin, result.unit)
    figures = f"{result.metric}[{result.slice}]: {figure_text(result)} {interval}, margin {rule}"
    if has_floor(result.probe, result.metric):
        figures += f", floor {floor_text(result)}"
    return "; ".join(filter(None, (figures, distance_text(result), held_text(result))))
