"""Filters that an address may ask for: a link leads to what it was made of, and a person's own choice ends that."""

from collections.abc import Sequence

import streamlit as st


def follow_address(name: str, key: str, options: Sequence[str]) -> None:
    """Set the widget `key` to what the address asks for by `name`, where that is one of its options.

    Without one the widget keeps what was chosen, or takes the first option where that is no longer among them.
    """
    asked = st.query_params.get(name)
    if asked in options:
        st.session_state[key] = asked
    elif st.session_state.get(key) not in options:
        st.session_state[key] = options[0]


def forget(*names: str) -> None:
    """Take filters out of the address: a person chose otherwise."""
    for name in names:
        st.query_params.pop(name, None)
