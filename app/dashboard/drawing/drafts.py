"""What a reviewer has typed and not yet written survives a reload of the page, and a server that starts anew.

It is kept where it was typed: in the storage of that tab of the browser (`sessionStorage`), which ends with the tab and
which no other tab, browser or person sees. The server keeps nothing of it, and no address holds it. Streamlit takes a
field's text when one leaves the field; the script below takes it at every key.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

_KEY = "drafts"
_WRITTEN = "drafts_written"

_JS = """
const named = (place, field) => 'q36eval ' + place + ' ' + field;
const kept = (place, field) => {
  try { return window.sessionStorage.getItem(named(place, field)) || ''; } catch { return ''; }
};
const keep = (place, field, words) => {
  try { window.sessionStorage.setItem(named(place, field), words); } catch { /* storage is full, or forbidden */ }
};
export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const places = Object.entries(data.places);
  const known = window.q36Drafts = window.q36Drafts || { written: 0 };
  if (data.written > known.written) {
    for (const [field, place] of places) if (data.written_fields.includes(field)) keep(place, field, '');
  }
  known.written = data.written;
  const typed = (event) => {
    for (const [field, place] of places) {
      if (event.target.closest && event.target.closest('.st-key-' + field)) keep(place, field, event.target.value);
    }
  };
  if (known.typed) document.removeEventListener('input', known.typed, true);
  known.typed = typed;
  document.addEventListener('input', typed, true);
  const all = JSON.stringify(data.places);
  if (parentElement.dataset.places !== all) {
    parentElement.dataset.places = all;
    const drafts = places.map(([field, place]) => [field, kept(place, field)]);
    const found = Object.fromEntries(drafts.filter(([, words]) => words));
    if (Object.keys(found).length) setTriggerValue('found', found);
  }
}
"""


@dataclass(frozen=True)
class Field:
    """A field of that key: how many characters it takes, what it is of (of another run it is another draft), and
    whether what was typed is done with once something is written."""

    key: str
    most: int
    of: str
    once: bool = True


def keep_drafts(fields: Sequence[Field]) -> None:
    """Keep what is typed into these fields, and put it back when the page is drawn anew: to be called before they
    are drawn."""

    def put_back() -> None:
        found = st.session_state[_KEY].get("found") or {}
        for field in fields:
            if isinstance(found.get(field.key), str) and not st.session_state.get(field.key):
                st.session_state[field.key] = found[field.key][: field.most]

    data = {
        "places": {field.key: hashlib.sha256(field.of.encode()).hexdigest()[:16] for field in fields},
        "written": st.session_state.get(_WRITTEN, 0),
        "written_fields": [field.key for field in fields if field.once],
    }
    _component()(key=_KEY, data=data, on_found_change=put_back, height=1)


def drop_drafts() -> None:
    """Forget what was typed once: it was written."""
    st.session_state[_WRITTEN] = st.session_state.get(_WRITTEN, 0) + 1


def _register() -> Any:
    # once: of a second registration of the same name the server warns
    return st.components.v2.component("q36eval_drafts", js=_JS, isolate_styles=False)


_component: Callable[[], Any] = st.cache_resource(_register, show_spinner=False)
