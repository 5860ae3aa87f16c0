"""The gate's report: one `Document`, rendered for terminal, JSON, Markdown, JUnit XML, HTML, GitHub and model cards.

Model text is inert in all of them. It imports the gate's data and no module that reads history.
"""

from q36eval.reports.console_report import to_console
from q36eval.reports.document import Document
from q36eval.reports.github_report import to_annotations
from q36eval.reports.json_report import json_schema, to_json

__all__ = [
    "Document",
    "json_schema",
    "to_annotations",
    "to_console",
    "to_json",
]
