"""Where a still chart stands on a page: a component, for Streamlit's own HTML holds no SVG."""

from collections.abc import Callable
from typing import Any

import streamlit as st

from q36eval.app.dashboard.drawing.static_charts import Still
from q36eval.app.dashboard.verdict_style import AXES

_HTML = '<div class="q36-chart"></div>'

# What it is given is drawn by `still`, which escapes every name in it.
_JS = """
export default function ({ data, parentElement }) {
  const place = parentElement.querySelector('.q36-chart');
  if (place.q36Drawn !== data.drawn) { place.innerHTML = data.drawn; place.q36Drawn = data.drawn; }
  place.style.setProperty('--q36-ends', data.ends);
}
"""

_CSS = """
.q36-chart { font-family: var(--st-font); color: var(--st-text-color); padding: .25rem 0; }
.q36-chart svg { overflow: visible; display: block; }
.q36-chart text { font-family: inherit; font-size: 12px; fill: currentColor; }
.q36-chart .said { font-size: 13px; }
.q36-chart .ends { fill: var(--q36-ends); }
.q36-chart .grid { stroke: currentColor; stroke-opacity: .13; }
.q36-keys { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .8rem; }
.q36-keys span { white-space: nowrap; }
.q36-keys svg { display: inline-block; vertical-align: -2px; }
@media (max-width: 700px) { .q36-chart .every-second { display: none; } }
"""


def draw_still(drawn: Still, alt: str, key: str) -> None:
    """Draw it; `alt` is what it says to who does not see it, `key` is unique on the page."""
    theme = st.context.theme.type or "light"
    _component()(key=key, data={"drawn": drawn.html(alt), "ends": AXES.get(theme, AXES["light"])})


def _register() -> Any:
    # once: of a second registration of the same name the server warns
    return st.components.v2.component("q36eval_chart", html=_HTML, css=_CSS, js=_JS, isolate_styles=False)


_component: Callable[..., Any] = st.cache_resource(_register, show_spinner=False)
