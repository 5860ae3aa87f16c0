"""The report as Markdown, for a job summary or a pull request."""

from markupsafe import Markup

from q36eval.inert_text import fenced, html, markdown
from q36eval.reports.deciding_answers import ANSWERS_TITLE
from q36eval.reports.document import Document
from q36eval.reports.evals_figures import group_cells, ratio_words
from q36eval.reports.templates import render
from q36eval.reports.text import COLUMNS, verdict_text


def to_markdown(document: Document, *, folded: bool = False, brief: bool = False) -> str:
    """Verdict first, then lanes, what decided and how nearly, what to do, and the answers that show it; then all
    criteria, why anything is not PASS, what was not measured, where evaluation stopped, and what accuracy alone hides
    of the evals. Where it is `folded`, each of the latter is closed until a reader opens it; where it is `brief`, it
    ends with what to do.
    """
    return render(
        "report.md.j2",
        markdown,
        document=document,
        report=document.report,
        run=document.run,
        folded=folded,
        brief=brief,
        answers_title=ANSWERS_TITLE,
        columns=COLUMNS,
        evals=list(map(group_cells, document.evals.groups())),
        html=lambda text: Markup(html(text)),
        fenced=lambda text: Markup("\n".join(fenced(text))),
        ratio_words=ratio_words,
        verdict_text=verdict_text,
    )
