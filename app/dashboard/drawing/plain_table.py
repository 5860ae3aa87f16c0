"""A table of plain strings as a table of the page: one can search it, copy of it, sort it, and hear it read.

Streamlit's own draws on a canvas, and is 1.2 MB of scripts; it takes what has more rows than a page's table should.
Every string becomes the text of a node by `textContent`, never markup.
"""

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from q36eval.app.dashboard.escape import line

MOST_ROWS = 300
"""A longer one is drawn on a canvas."""

_HTML = "<div class='q36-table' tabindex='0' role='group'></div>"

_CSS = """
.q36-table { overflow: auto; max-height: 36rem; border: 1px solid var(--st-border-color);
  border-radius: var(--st-base-radius); font-family: var(--st-font); font-size: .85rem; color: var(--st-text-color); }
.q36-table:focus-visible { outline: 2px solid var(--st-primary-color); }
.q36-table table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
.q36-table th { position: sticky; top: 0; text-align: left; padding: 0;
  background: var(--st-secondary-background-color); }
.q36-table th button { all: unset; box-sizing: border-box; width: 100%; padding: .35rem .6rem; cursor: pointer;
  white-space: nowrap; font-weight: 600; }
.q36-table th button:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: -2px; }
.q36-table th[aria-sort=ascending] button::after { content: ' \\25b4'; }
.q36-table th[aria-sort=descending] button::after { content: ' \\25be'; }
.q36-table td { padding: .3rem .6rem; border-top: 1px solid var(--st-border-color); vertical-align: top;
  min-width: 3rem; max-width: 32rem; overflow-wrap: break-word; }
"""

_JS = """
const node = (name, text) => { const made = document.createElement(name); made.textContent = text; return made; };
export default function ({ data, parentElement }) {
  const place = parentElement.querySelector('.q36-table');
  const said = JSON.stringify(data);
  if (place.q36Drawn === said) return;
  place.q36Drawn = said;
  place.setAttribute('aria-label', data.alt);
  const [table, body, head] = ['table', 'tbody', 'tr'].map((name) => document.createElement(name));
  const draw = (rows) => body.replaceChildren(...rows.map((row) => {
    const made = document.createElement('tr');
    made.append(...row.map((cell) => node('td', cell)));
    return made;
  }));
  data.columns.forEach((name, at) => {
    const cell = document.createElement('th'), button = node('button', name);
    cell.scope = 'col';
    button.type = 'button';
    button.onclick = () => {
      const down = cell.getAttribute('aria-sort') === 'ascending';
      for (const other of head.children) other.removeAttribute('aria-sort');
      cell.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      const number = (text) => parseFloat(text.replace(/,/g, ''));
      const order = (a, b) => number(a[at]) - number(b[at]) || a[at].localeCompare(b[at], 'en', { numeric: true });
      draw([...data.rows].sort((a, b) => down ? order(b, a) : order(a, b)));
    };
    cell.append(button);
    head.append(cell);
  });
  draw(data.rows);
  const top = document.createElement('thead');
  top.append(head);
  table.append(top, body);
  place.replaceChildren(table);
}
"""


def plain_table(rows: Sequence[dict[str, str]], alt: str, key: str) -> None:
    """Draw the rows, with a column for every name in them; `alt` says what it is, `key` is unique on the page."""
    cells = [{line(name): line(value) for name, value in row.items()} for row in rows]
    if len(rows) > MOST_ROWS:
        st.dataframe(cells, hide_index=True, height="auto", alt=alt)
        return
    columns = list(dict.fromkeys(name for row in cells for name in row))
    data = {"alt": line(alt), "columns": columns, "rows": [[row.get(name, "") for name in columns] for row in cells]}
    _component()(key=f"table {key}", data=data)


def _register() -> Any:
    # once: of a second registration of the same name the server warns
    return st.components.v2.component("q36eval_table", html=_HTML, css=_CSS, js=_JS, isolate_styles=False)


_component: Callable[..., Any] = st.cache_resource(_register, show_spinner=False)
