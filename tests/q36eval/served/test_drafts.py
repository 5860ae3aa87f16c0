"""What a server drafts and accepts, by its counters: counted by prompt, held to a floor."""

from collections.abc import Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from q36eval.engines import Engine, EngineSettings
from q36eval.engines.openai.counters import CacheState, DraftCounts, draft_counts_of
from q36eval.engines.openai.deployment import opened
from q36eval.engines.openai.endpoint import Continuation, Endpoint
from q36eval.gate import CriterionVerdict, decide
from q36eval.records import Measurement
from q36eval.run.served_lane import alone
from q36eval.served import differentials
from q36eval.served.declared_server import Plan
from q36eval.served.drafts import Drafted, drafted, rejected_measured
from q36eval.served.prompts import Prompts
from tests.q36eval.openai.server import SANDBOX
from tests.q36eval.served.chat_server import Chatting, Faults, chatting, endpoint_of
from tests.q36eval.served.judging import few_prompts_policy

PROMPTS = 40
PAGE = """# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 2.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e9
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 20.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 4.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 13.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m"} 1.0
"""


@pytest.fixture
def rows_of(local: Engine, known: dict[object, object], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a server that drafts so tells of short prompts, and what it counted itself."""
    monkeypatch.setattr("q36eval.served.prompts.ANSWER_TOKENS", 8)

    def asked(count: int = PROMPTS, **how: Any) -> tuple[list[Drafted], DraftCounts]:
        served = Chatting(local, known=known, **how)
        with endpoint_of(served) as endpoint:
            before = endpoint.draft_counts()
            rows = drafted(endpoint, Prompts(endpoint.tokenizer, None).short(count))
            after = endpoint.draft_counts()
        if before is None or after is None:
            return rows, DraftCounts()
        return rows, after.since(before)

    return asked


def verdict_of(figures: Sequence[Measurement], criterion: str, floor: float = 0.1) -> CriterionVerdict:
    report = decide(alone(few_prompts_policy(), against=False, least_acceptance=floor), figures)
    return next(each.verdict for each in report.criteria if each.id == criterion)


@pytest.mark.parametrize(
    ("page", "counts"),
    [
        (PAGE, DraftCounts(12, 24, 14)),
        ("", None),
        ("\n".join(PAGE.splitlines()[:4]), None),
        (PAGE.replace(" 10.0", " NaN"), None),
    ],
)
def test_counters_are_summed_over_engines_and_what_is_not_told_whole_is_not_told(
    page: str, counts: DraftCounts | None
) -> None:
    assert draft_counts_of(page.splitlines()) == counts


@pytest.mark.long
def test_the_share_is_of_all_drafts_and_its_interval_of_prompts(rows_of: Any) -> None:
    rows, total = rows_of(draft_length=2)
    measured = rejected_measured(rows, DraftCounts(5, 10, 4))
    assert measured.value == pytest.approx(total.rejected / total.drafted)
    assert measured.counts.scored == total.drafted
    assert len(measured.clusters.units) == PROMPTS
    bounds = measured.effect_interval
    assert 0 < bounds.lower < measured.value < bounds.upper < 1
    assert "4 of 10 draft tokens accepted (40.0%) under mixed load" in measured.note
    share = total.accepted / total.drafted
    floors = {share - 0.3: "PASS", share + 0.3: "FAIL"}
    for floor, verdict in floors.items():
        assert verdict_of([measured], "served-drafts", floor=floor) == verdict


@pytest.mark.long
def test_a_server_that_does_not_draft_is_not_measured_and_asked_nothing(rows_of: Any) -> None:
    rows, _ = rows_of(count=2)
    assert [each.counts for each in rows] == ["the server did not report its draft counters"] * 2
    assert verdict_of([], "served-drafts") == "NOT_MEASURED"
    assert not [each.id for each in alone(few_prompts_policy(), against=False).criteria if "drafts" in each.id]


@pytest.mark.parametrize("how", [{"draft_length": 2}, {"others_rows": True}], ids=["drafts", "wrong"])
def test_what_is_generated_has_log_probabilities_where_a_prompts_own_are_not_believed(
    local: Engine, known: Any, how: dict[str, Any]
) -> None:
    with chatting(Chatting(local, known=known, max_logprobs=20, **how)) as address:
        settings = EngineSettings(SANDBOX, kind="openai", base_url=address)
        there = opened(settings, Endpoint.limits)
        assert (there.can.scores, there.can.top_k) == ("nothing", None)
        with closing(Endpoint(there, settings)) as endpoint:
            answer = endpoint.complete(local.tokenizer.encode("Kolik stojí čaj?"), 4)
    assert endpoint.gives_log_probs
    assert answer.log_probs is not None
    assert answer.token_ids is not None
    assert [max(row, key=row.__getitem__) for row in answer.log_probs] == list(answer.token_ids)


@pytest.mark.parametrize("fault", ["shifted_log_probs", "one_log_prob", "undrafted"])
def test_what_is_generated_has_none_that_cannot_be_believed(local: Engine, known: Any, fault: str) -> None:
    """Those of other places, too few to tell a near tie by, and any that are had for the price of no drafts."""
    served = Chatting(local, known=known, max_logprobs=20, draft_length=2, faults=Faults(**{fault: True}))
    with endpoint_of(served) as endpoint:
        assert not endpoint.gives_log_probs


def test_prompts_without_an_answer_are_errored_and_those_without_a_draft_say_nothing() -> None:
    rows = [Drafted("a", DraftCounts(4, 8, 6)), Drafted("b", "no answer"), Drafted("c", DraftCounts())]
    measured = rejected_measured(rows, None)
    assert measured.value == pytest.approx(0.25)
    assert (measured.counts.scored, measured.counts.errored) == (8, 1)


# -- other people's requests next to ours: what their counters rise by is no fault of the server's, and nothing of ours

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
def test_what_others_found_in_the_cache_or_had_drafted_is_not_counted(others: bool) -> None:
    prompts: Any = SimpleNamespace(long=lambda *_: LONG)
    server: Any = Busy(others)
    found = differentials.cache_hit(server, prompts, Plan(), 0.25)
    assert not [item for item in found.compared if item.changed is not None]
    assert sum("other clients used" in (item.error or "") for item in found.compared) == (7 if others else 0)
    server: Any = Busy(others)
    rows = drafted(server, LONG)  # type: ignore[arg-type]
    known = [row.counts for row in rows if isinstance(row.counts, DraftCounts)]
    assert len(known) == (61 if others else 64)
    assert {each.rejected for each in known} == {2}
