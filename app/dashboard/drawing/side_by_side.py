"""Two answers side by side with what differs marked, and both models' choices where they part.

Every string is escaped. What only one of the two says is `<del>` or `<ins>`, with a dashed or a solid line under it: it
can be told without its colour, and by a screen reader. Nothing is struck out: the reference is mostly right.
"""

from collections.abc import Sequence
from html import escape

import streamlit as st

from q36eval.app.dashboard.escape import block, line
from q36eval.app.figures.answers import Choice, Held, Pieces

_STYLE = """<style>
.q36-answers { display: grid; grid-template-columns: 1fr 1fr; gap: 0.75rem 1rem; }
@media (max-width: 700px) { .q36-answers { grid-template-columns: 1fr; } }
.q36-answers section { min-width: 0; }
.q36-answers .title { font-size: 0.875rem; margin: 0 0 0.25rem; opacity: 0.85; }
.q36-answers pre { margin: 0; padding: 0.75rem; max-height: 22rem; overflow: auto; white-space: pre-wrap;
  overflow-wrap: anywhere; font-family: monospace; font-size: 0.85rem; line-height: 1.5;
  background: rgba(128, 132, 140, 0.12); border-radius: 0.5rem; }
.q36-answers pre:focus-visible { outline: 2px solid #3b7dd8; }
.q36-answers del, .q36-answers ins { border-radius: 2px; padding: 0 1px; text-underline-offset: 3px; }
.q36-answers del { background: rgba(201, 133, 0, 0.28); text-decoration: underline dashed 2px; }
.q36-answers ins { background: rgba(59, 125, 216, 0.30); text-decoration: underline solid 2px; }
.q36-answers .parting { grid-column: 1 / -1; }
.q36-answers table { border-collapse: collapse; width: 100%; font-size: 0.85rem; table-layout: fixed; }
.q36-answers th { text-align: left; font-weight: 400; opacity: 0.75; padding: 0.1rem 0.5rem; }
.q36-answers td { padding: 0.1rem 0.5rem; vertical-align: middle; }
.q36-answers td.token { font-family: monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.q36-answers th:first-child { width: 16%; }
.q36-answers .bar { display: inline-block; height: 0.7rem; border-radius: 2px; vertical-align: middle;
  margin-right: 0.4rem; min-width: 1px; }
.q36-answers .reference { background: #c98500; } .q36-answers .branch { background: #3b7dd8; }
.q36-answers .said { font-weight: 700; }
</style>"""


def side_by_side(
    titles: tuple[str, str], pieces: tuple[Pieces, Pieces], parting: str | None = None, choices: Sequence[Choice] = ()
) -> None:
    """Reference on the left, branch on the right; below, where they part and what each held likeliest there."""
    sides = [_side(*side) for side in zip(titles, pieces, ("del", "ins"), strict=True)]
    below = "" if parting is None else _parting(parting, choices)
    st.html(f'{_STYLE}<div class="q36-answers">{"".join(sides)}{below}</div>')


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
