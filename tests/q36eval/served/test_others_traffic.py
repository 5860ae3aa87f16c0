"""Other people's requests beside ours: what their counters rise by is no fault of the server's, and nothing of ours."""

from types import SimpleNamespace
from typing import Any

import pytest

from q36eval.engines.openai.counters import CacheState, DraftCounts
from q36eval.engines.openai.endpoint import Continuation
from q36eval.served import differentials
from q36eval.served.declared_server import Plan
from q36eval.served.drafts import drafted

LONG = [SimpleNamespace(name=f"p{n}", token_ids=(n + 1, *([7] * 600)), budget=8) for n in range(64)]


class Busy:
    """A server that finds again what a salt was sent with, tells so by its counters alone, and serves others too."""

    salts = gives_log_probs = True

    def __init__(self, others: bool) -> None:
        self.others, self.asked, self.queries, self.hits = others, 0, 0, 0
        self.seen: set[Any] = set()
        self.drafts = DraftCounts()

    def cache_state(self) -> CacheState:
        return CacheState(self.queries, self.hits, 10**6, 16)

    def draft_counts(self) -> DraftCounts:
        return self.drafts

    def fits(self, *_: Any) -> bool:
        return True

    def complete(self, ids: tuple[int, ...], budget: int, salt: str | None = None, **_: Any) -> Continuation:
        self.asked += 1
        self.queries += len(ids)
        self.hits += 592 if (ids, salt) in self.seen else 0
        self.seen.add((ids, salt))
        self.drafts += DraftCounts(4, 8, 6)
        if self.others and self.asked % 30 == 1:
            self.queries, self.hits = self.queries + 600, self.hits + 48
            self.drafts += DraftCounts(90, 180, 1)
        return Continuation("a", (5,), "stop")


@pytest.mark.parametrize("others", [False, True])
def test_what_others_found_in_the_cache_is_no_difference(others: bool) -> None:
    prompts: Any = SimpleNamespace(long=lambda *_: LONG)
    server: Any = Busy(others)
    found = differentials.cache_hit(server, prompts, Plan())
    assert not [item for item in found.compared if item.changed is not None]
    assert sum("others asked" in (item.error or "") for item in found.compared) == (7 if others else 0)


@pytest.mark.parametrize("others", [False, True])
def test_what_was_drafted_for_others_is_not_counted(others: bool) -> None:
    server: Any = Busy(others)
    rows = drafted(server, LONG)  # type: ignore[arg-type]
    known = [row.counts for row in rows if isinstance(row.counts, DraftCounts)]
    assert len(known) == (61 if others else 64)
    assert {each.rejected for each in known} == {2}
