"""The gate's report: terminal, JSON, Markdown, JUnit XML, HTML, GitHub. Model text is inert in all of them."""

from q36eval.reports.console_report import to_console
from q36eval.reports.github_report import to_annotations, to_summary
from q36eval.reports.json_report import json_schema, to_json
from q36eval.reports.junit_report import to_junit
from q36eval.reports.markdown_report import to_markdown

__all__ = ["json_schema", "to_annotations", "to_console", "to_json", "to_junit", "to_markdown", "to_summary"]
