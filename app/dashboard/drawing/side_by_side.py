"""Two answers side by side with what differs marked, and both models' choices where they part.

Every string is escaped. What only one of the two says is `<del>` or `<ins>`, with a dashed or a solid line under it
(`pages.css`): it can be told without its colour, and by a screen reader. Nothing is struck out: the reference is mostly
right.
"""

from collections.abc import Sequence
from html import escape

import streamlit as st

from q36eval.app.dashboard.escape import block, line
from q36eval.app.figures.answers import Choice, Held, Pieces


def side_by_side(
    titles: tuple[str, str], pieces: tuple[Pieces, Pieces], parting: str | None = None, choices: Sequence[Choice] = ()
) -> None:
    """Reference on the left, branch on the right; below, where they part and what each held likeliest there."""
    sides = [_side(*side) for side in zip(titles, pieces, ("del", "ins"), strict=True)]
    below = "" if parting is None else _parting(parting, choices)
    st.html(f'<div class="q36-answers">{"".join(sides)}{below}</div>')


def _side(title: str, pieces: Pieces, mark: str) -> str:
    named, tags = escape(line(title)), {True: mark, False: "span"}
    said = "".join(f"<{tags[marked]}>{escape(block(text))}</{tags[marked]}>" for text, marked in pieces)
    return f'<section><p class="title">{named}</p><pre tabindex="0" aria-label="{named}">{said}</pre></section>'


def _parting(words: str, choices: Sequence[Choice]) -> str:
    rows = "".join(
        f'<tr><td class="token">{escape(line(choice.token))}</td>{_held("reference", choice.reference)}'
        f"{_held('branch', choice.branch)}</tr>"
        for choice in choices
    )
    head = "<tr><th>token</th><th>reference</th><th>branch</th></tr>"
    return f'<section class="parting"><p class="title">{escape(line(words))}</p><table>{head}{rows}</table></section>'


def _held(side: str, held: Held | None) -> str:
    if held is None:
        return "<td>–</td>"
    said = ' class="said"' if held.said else ""
    words = escape(held.words) + (" \N{BLACK LEFT-POINTING SMALL TRIANGLE} said" if held.said else "")
    return f'<td><span class="bar {side}" style="width: {45 * held.share:.1f}%"></span><span{said}>{words}</span></td>'
