"""The gate's report as JSON, Markdown, JUnit XML and a terminal table. Model text is inert in all of them."""

from q36eval.reports.console_report import to_console
from q36eval.reports.json_report import to_json
from q36eval.reports.junit_report import to_junit
from q36eval.reports.markdown_report import to_markdown

__all__ = ["to_console", "to_json", "to_junit", "to_markdown"]
