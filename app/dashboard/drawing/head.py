"""What every page begins with: its heading, and the title of the browser's tab."""

import streamlit as st

from q36eval.app.dashboard.escape import line

PROGRAM = "q36eval"
_PAGE = "page_of_the_tab"


def page_head(page: str) -> None:
    """The heading of a page, and the tab's title; every page begins with it."""
    st.session_state[_PAGE] = page
    name_tab()
    st.title(page, anchor=False)


def name_tab(*of: str) -> None:
    """Name in the browser's tab what the page is of: a branch, a run. Names are text there, never markup."""
    words = [st.session_state.get(_PAGE, PROGRAM), *map(line, of), PROGRAM]
    st.set_page_config(page_title=" · ".join(dict.fromkeys(words)))
