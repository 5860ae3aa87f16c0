"""What every page begins with: its heading, the title of the browser's tab, and a button that copies the address."""

from collections.abc import Callable
from typing import Any

import streamlit as st

from q36eval.app.dashboard.inert import line

PROGRAM = "q36eval"
_PAGE = "page_of_the_tab"

_HTML = """<div class="q36-link"><button type="button">Copy link to this view</button>
<span role="status" aria-live="polite"></span><input type="text" readonly hidden aria-label="The address of this view">
</div>"""

_CSS = """
.q36-link { display: flex; flex-wrap: wrap; gap: .25rem .75rem; align-items: center; justify-content: flex-end;
  font-family: var(--st-font); font-size: .875rem; color: var(--st-text-color); }
.q36-link button { font: inherit; color: inherit; background: transparent; border: 1px solid var(--st-border-color);
  border-radius: var(--st-button-radius); padding: .25rem .75rem; cursor: pointer; white-space: nowrap; }
.q36-link button:hover { border-color: var(--st-primary-color); }
.q36-link button:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px; }
.q36-link span:empty { display: none; }
.q36-link input { flex: 1 0 100%; width: 100%; font-family: var(--st-code-font); font-size: .8rem; padding: .4rem;
  color: inherit; background: var(--st-secondary-background-color); border: 1px solid var(--st-border-color); }
.q36-link input[hidden] { display: none; }
"""

# On plain http under another name than localhost a browser has no `navigator.clipboard`; the older command copies there
# what is selected. Where neither may, the address stands selected, for a person to copy.
_JS = """
export default function (component) {
  const part = (name) => component.parentElement.querySelector('.q36-link ' + name);
  const button = part('button'), said = part('span'), field = part('input');
  const selected = () => {
    field.value = window.location.href;
    field.hidden = false;
    field.focus();
    field.select();
  };
  const copied = async () => {
    if (window.isSecureContext && navigator.clipboard) {
      try { await navigator.clipboard.writeText(window.location.href); return true; } catch { /* the older way */ }
    }
    selected();
    const done = document.execCommand('copy');
    if (done) { field.hidden = true; button.focus(); }
    return done;
  };
  button.onclick = async () => {
    const done = await copied();
    said.textContent = done ? 'Copied' : 'Press Ctrl+C to copy';
    if (done) setTimeout(() => { said.textContent = ''; }, 4000);
    else selected();
  };
}
"""


def page_head(page: str) -> None:
    """The heading of a page, the tab's title, and the button; every page begins with it."""
    st.session_state[_PAGE] = page
    name_tab()
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.title(page, anchor=False, width="content")
        _component()(key=f"link {page}", width="content")


def name_tab(*of: str) -> None:
    """Name in the browser's tab what the page is of: a branch, a run. Names are text there, never markup."""
    words = [st.session_state.get(_PAGE, PROGRAM), *map(line, of), PROGRAM]
    st.set_page_config(page_title=" · ".join(dict.fromkeys(words)))


def _register() -> Any:
    # once: of a second registration of the same name the server warns
    return st.components.v2.component("q36eval_link", html=_HTML, css=_CSS, js=_JS, isolate_styles=False)


_component: Callable[[], Any] = st.cache_resource(_register, show_spinner=False)
