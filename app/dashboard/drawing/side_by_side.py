"""Two answers side by side with what differs marked, and both models' choices where they part.

A component of our own, for a table cannot mark parts of a text: every string of it becomes the text of a node by
`textContent`, never markup. What only one of the two says is `<del>` or `<ins>`, with a dashed or a solid line under
it: it can be told without its colour, and by a screen reader. Nothing is struck out: the reference is mostly right.
"""

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from q36eval.app.dashboard.escape import block, line
from q36eval.app.figures.answers import Choice

Pieces = Sequence[tuple[str, bool]]
"""A text in order; True marks what the other text does not have."""

_HTML = "<div class='q36-answers'></div>"

_CSS = """
.q36-answers { display: grid; grid-template-columns: 1fr 1fr; gap: 0.75rem 1rem; font-family: var(--st-font); }
@media (max-width: 700px) { .q36-answers { grid-template-columns: 1fr; } }
.q36-answers section { min-width: 0; }
.q36-answers .title { font-size: 0.875rem; margin: 0 0 0.25rem; opacity: 0.85; }
.q36-answers pre { margin: 0; padding: 0.75rem; max-height: 22rem; overflow: auto; white-space: pre-wrap;
  overflow-wrap: anywhere; font-family: var(--st-code-font); font-size: 0.85rem; line-height: 1.5;
  background: var(--st-secondary-background-color); border-radius: var(--st-base-radius); color: var(--st-text-color); }
.q36-answers pre:focus-visible { outline: 2px solid var(--st-primary-color); }
.q36-answers del, .q36-answers ins { border-radius: 2px; padding: 0 1px; text-underline-offset: 3px; }
.q36-answers del { background: rgba(201, 133, 0, 0.28); text-decoration: underline dashed 2px; }
.q36-answers ins { background: rgba(59, 125, 216, 0.30); text-decoration: underline solid 2px; }
.q36-answers .parting { grid-column: 1 / -1; }
.q36-answers table { border-collapse: collapse; width: 100%; font-size: 0.85rem; table-layout: fixed;
  color: var(--st-text-color); }
.q36-answers th { text-align: left; font-weight: 400; opacity: 0.75; padding: 0.1rem 0.5rem; }
.q36-answers td { padding: 0.1rem 0.5rem; vertical-align: middle; }
.q36-answers td.token { font-family: var(--st-code-font); white-space: pre-wrap; overflow-wrap: anywhere; }
.q36-answers th:first-child { width: 16%; }
.q36-answers .bar { display: inline-block; height: 0.7rem; border-radius: 2px; vertical-align: middle;
  margin-right: 0.4rem; min-width: 1px; }
.q36-answers .reference { background: #c98500; } .q36-answers .branch { background: #3b7dd8; }
.q36-answers .said { font-weight: 700; }
"""

_JS = """
const node = (name, text, kind) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
};
const answer = (side) => {
  const section = node('section'), pre = node('pre');
  pre.tabIndex = 0;
  pre.setAttribute('aria-label', side.title);
  for (const [text, marked] of side.pieces) pre.append(node(marked ? side.mark : 'span', text));
  section.append(node('p', side.title, 'title'), pre);
  return section;
};
const share = (choice, side) => {
  const cell = node('td'), found = choice[side];
  if (found === null) { cell.textContent = '\\u2013'; return cell; }
  const bar = node('span', '', 'bar ' + side);
  bar.style.width = (45 * found.share) + '%';
  cell.append(bar, node('span', found.words + (found.said ? ' \\u25c2 said' : ''), found.said ? 'said' : ''));
  return cell;
};
const parting = (data) => {
  const section = node('section', undefined, 'parting'), table = node('table'), head = node('tr');
  for (const title of ['token', 'reference', 'branch']) head.append(node('th', title));
  table.append(head);
  for (const choice of data.choices) {
    const row = node('tr');
    row.append(node('td', choice.token, 'token'), share(choice, 'reference'), share(choice, 'branch'));
    table.append(row);
  }
  section.append(node('p', data.parting, 'title'), table);
  return section;
};
export default function (component) {
  const { data, parentElement } = component;
  const shown = data.sides.map(answer);
  if (data.parting) shown.push(parting(data));
  parentElement.querySelector('.q36-answers').replaceChildren(...shown);
}
"""


def side_by_side(
    titles: tuple[str, str],
    pieces: tuple[Pieces, Pieces],
    key: str,
    parting: str | None = None,
    choices: Sequence[Choice] = (),
) -> None:
    """Reference on the left, branch on the right; below, where they part and what each held likeliest there."""
    sides = [
        {"title": line(title), "mark": mark, "pieces": [[block(text), marked] for text, marked in side]}
        for title, mark, side in zip(titles, ("del", "ins"), pieces, strict=True)
    ]
    parting_line = "" if parting is None else line(parting)
    data = {"sides": sides, "parting": parting_line, "choices": [_choice(choice) for choice in choices]}
    _component()(key=key, data=data)


def _choice(choice: Choice) -> dict[str, object]:
    shown: dict[str, object] = {"token": line(choice.token)}
    for name, side in (("reference", choice.reference), ("branch", choice.branch)):
        shown[name] = None if side is None else {"share": side.share, "words": side.words, "said": side.said}
    return shown


def _register() -> Any:
    # once: of a second registration of the same name the server warns
    return st.components.v2.component("q36eval_answers", html=_HTML, css=_CSS, js=_JS, isolate_styles=False)


_component: Callable[[], Any] = st.cache_resource(_register, show_spinner=False)
