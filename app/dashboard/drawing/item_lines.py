"""A run's items without their texts, and the few of them that a page shows, whole.

To count, filter and order items no text is needed; the texts are nearly all of their size. So the lists that are kept
between clicks hold a digest for each text, and a page of items is read when it is turned to.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import streamlit as st

from q36eval.app.dashboard.history_reader import Reader, moment
from q36eval.history import History, RunRecord
from q36eval.records import Answer, ItemOutcome, ProbeName

CHUNK = 500

ItemKey = tuple[str, str]
"""Group and item key: unique among the items of one probe in a run."""


@dataclass(frozen=True)
class ItemLines:
    """Items whose texts are digests and whose prompts are left out, with where each stands in history's order."""

    items: tuple[ItemOutcome, ...]
    places: dict[ItemKey, int]


def lines_of(items: Iterable[ItemOutcome]) -> ItemLines:
    """Of items in the order history gives them; texts that are equal have equal digests."""
    lines = tuple(map(_without_texts, items))
    return ItemLines(lines, {(item.group, item.item_key): place for place, item in enumerate(lines)})


def _without_texts(item: ItemOutcome) -> ItemOutcome:
    sides = {"branch": _digested(item.branch), "reference": _digested(item.reference)}
    return item.model_copy(update={"prompt": None, "expected": None, **sides})


def _digested(answer: Answer) -> Answer:
    if answer.text is None:
        return answer
    digest = hashlib.sha256(answer.text.encode("utf-8", "surrogatepass")).hexdigest()
    return answer.model_copy(update={"text": digest})


def read_lines(reader: Reader, run: RunRecord, probe: ProbeName, *, flips_only: bool = False) -> ItemLines:
    """The items of one probe in a run, those that flipped alone on request; kept until the run grows."""
    return _lines(reader.key, reader.source, run.id, moment(run), probe, flips_only, reader.history)


def read_whole(
    reader: Reader, run: RunRecord, lines: ItemLines, chosen: Sequence[ItemOutcome], *, flips_only: bool = False
) -> list[ItemOutcome]:
    """The chosen ones of `lines` with their texts; `flips_only` as they were read."""
    history, whole = reader.history, []
    for item in chosen:
        place = lines.places[item.group, item.item_key]
        whole += history.items(run.id, item.probe, flips_only=flips_only, limit=1, offset=place)
    return whole


def _read(
    key: str | None, source: str, run_id: str, moment: str, probe: ProbeName, flips_only: bool, _history: History
) -> ItemLines:
    return lines_of(_in_chunks(_history, run_id, probe, flips_only))


def _in_chunks(history: History, run_id: str, probe: ProbeName, flips_only: bool) -> Iterator[ItemOutcome]:
    offset = 0
    while chunk := history.items(run_id, probe, flips_only=flips_only, limit=CHUNK, offset=offset):
        yield from chunk
        offset += len(chunk)


_lines: Callable[..., ItemLines] = st.cache_resource(_read, max_entries=16, show_spinner=False)
