"""What a page shows stands in its address: a widget takes its value from there, and writes it there when it is changed.

Streamlit's own binding (`bind="query-params"`) is not used: it drops a parameter from a link to another page where a
widget of this page is bound to that name, as of a canary's link to its review.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from q36eval.app.dashboard.escape import line

PAGE = "page"
YES = "yes"
OPEN, CLOSED = "open", "closed"
"""Names of the expanders that are not as they begin."""


def choice(name: str, key: str, options: Sequence[str]) -> dict[str, Any]:
    """Arguments of a widget that chooses one of the options; the first is the default, and is not in the address."""
    asked = st.query_params.get(name)
    return _kept(name, key, asked if asked in options else options[0], options[0])


def switch(name: str, key: str) -> dict[str, Any]:
    """Arguments of a toggle, which is off by default."""
    return _kept(name, key, st.query_params.get(name) == YES, default=False, written=lambda _: YES)


def typed(name: str, key: str) -> dict[str, Any]:
    """Arguments of a field for text, which is empty by default."""
    return _kept(name, key, st.query_params.get(name, ""), "")


def number(name: str, key: str, most: int) -> dict[str, Any]:
    """Arguments of a field for a number from 1, the default, to `most`: what is beyond is the nearest that there is."""
    asked = st.query_params.get(name, "")
    return _kept(name, key, min(max(1, int(asked)), most) if asked.isascii() and asked.isdigit() else 1, 1)


def tabs(name: str, key: str, titles: Sequence[str], ids: Sequence[str] = (), default: str | None = None) -> list[Any]:
    """Tabs of which the open one is in the address, by its id where the titles have such; `default`'s, or the first's,
    is not.

    Only the `open` of that one is set: what a closed one holds need not be drawn.
    """
    ids = ids or titles
    asked = st.query_params.get(name)
    title_of, id_of = dict(zip(ids, titles, strict=True)), dict(zip(titles, ids, strict=True))
    first = default or titles[0]
    kept = _kept(name, key, title_of.get(asked or "", first), first, written=lambda title: id_of[title])
    return list(st.tabs(list(titles), **kept))


def expander(
    title: str, name: str, key: str, *, expanded: bool = False, keeps: bool = False, icon: str | None = None
) -> Any:
    """An expander that is open or closed as the address says by its `name`, else as `expanded` says.

    Only the contents of an open one (`.open`) need be drawn. `keeps`: it stays as a person left it, where `expanded`
    hangs on what else is in the address; that is written down then.
    """
    asked = True if name in _listed(OPEN) else False if name in _listed(CLOSED) else None
    if asked is None and keeps:
        asked = st.session_state.get(key)
    st.session_state[key] = expanded if asked is None else asked
    _write_down(name, st.session_state[key], expanded)
    return st.expander(title, key=key, icon=icon, on_change=lambda: _write_down(name, st.session_state[key], expanded))


def _listed(parameter: str) -> list[str]:
    return list(filter(None, st.query_params.get(parameter, "").split(",")))


def _write_down(name: str, is_open: bool, expanded: bool) -> None:
    for parameter, belongs in ((OPEN, is_open and not expanded), (CLOSED, expanded and not is_open)):
        listed = _listed(parameter)
        if belongs != (name in listed):
            left = [*listed, name] if belongs else [one for one in listed if one != name]
            if left:
                st.query_params[parameter] = ",".join(left)
            else:
                forget(parameter)


def follow(name: str, key: str, options: Sequence[str]) -> None:
    """Set the widget `key` to what the address asks for by `name`, where that is one of its options.

    Without one the widget keeps what was chosen, or takes the first option where that is no longer among them.
    """
    named = st.query_params.get(name)
    if named in options:
        st.session_state[key] = named
    elif st.session_state.get(key) not in options:
        st.session_state[key] = options[0]


def asks_for_none(fields: Mapping[str, tuple[str, Sequence[str]]]) -> bool:
    """Whether the address asks for what is not among the options of a field, and says so: all would be taken for it.

    `fields` are the fields' titles and options by their names in the address.
    """
    unknown = [
        f"{title.lower()} {asked}"
        for name, (title, options) in fields.items()
        if (asked := st.query_params.get(name)) and asked not in options
    ]
    for words in unknown:
        st.warning("This run has no question of what the address asks for, so none is shown:")
        st.text(line(words))
    return bool(unknown)


def forget(*names: str) -> None:
    """Take these out of the address: a person chose otherwise."""
    for name in names:
        st.query_params.pop(name, None)


def _kept(name: str, key: str, value: Any, default: Any, written: Callable[[Any], str] = str) -> dict[str, Any]:
    st.session_state[key] = value

    def follow() -> None:
        changed = st.session_state[key]
        if name != PAGE and not name.endswith(f"_{PAGE}"):
            forget(*(one for one in st.query_params if one == PAGE or one.endswith(f"_{PAGE}")))
        if changed == default:
            forget(name)
        else:
            st.query_params[name] = written(changed)

    return {"key": key, "on_change": follow}
