"""Two answers next to each other with marked differences, and both models' choices at the first difference.

Every string is escaped. Text in only one of the two is `<del>` or `<ins>`, with a dashed or a solid underline
(`pages.css`): distinguishable without colour, and by a screen reader. Nothing is struck out: the reference is mostly
right.
"""

from collections.abc import Sequence
from html import escape

import streamlit as st
from markupsafe import Markup

from q36eval.app.dashboard.drawing.tables import FOLDER
from q36eval.app.dashboard.escape import block
from q36eval.app.figures.answers import Choice, Pieces
from q36eval.inert_text import html
from q36eval.reports.templates import render


def side_by_side(
    titles: tuple[str, str], pieces: tuple[Pieces, Pieces], parting: str | None = None, choices: Sequence[Choice] = ()
) -> None:
    """Reference on the left, branch on the right; below, where they part and what each held likeliest there."""
    sides = list(zip(titles, pieces, ("del", "ins"), strict=True))
    given = {"sides": sides, "parting": parting, "choices": choices, "block": block_html}
    st.html(render("answers.html.j2", html, FOLDER, **given).strip())


def block_html(text: str) -> Markup:
    """Several lines of someone's text, to be shown as they are."""
    return Markup(escape(block(text)))
