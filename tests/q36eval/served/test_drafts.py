"""What a server drafts and accepts, by its counters: counted by prompt, held to a floor."""

from collections.abc import Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from q36eval.config import Family
from q36eval.config.family import ChatTemplate
from q36eval.engines import Engine, EngineSettings
from q36eval.engines.openai.counters import CacheState, DraftCounts, draft_counts_of
from q36eval.engines.openai.deployment import opened
from q36eval.engines.openai.endpoint import Continuation, Endpoint
from q36eval.gate import CriterionVerdict, decide
from q36eval.probes import Progress
from q36eval.records import Measurement, ProbeFailure
from q36eval.run.served_lane import alone
from q36eval.served import differentials
from q36eval.served.chat import ask_chat, parser_measured, prompts_measured, streams_measured
from q36eval.served.declared_server import Plan
from q36eval.served.drafts import Drafted, drafted, rejected_measured
from q36eval.served.probe import measure_served
from q36eval.served.prompts import Prompts
from tests.q36eval.openai.server import SANDBOX
from tests.q36eval.served.chat_server import Chatting, Faults, chatting, endpoint_of
from tests.q36eval.served.judging import REPOSITORY, few_prompts_policy

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
    found = differentials.cache_hit(server, prompts, Plan(), differentials.Alone([], {}, {}))
    assert not [item for item in found.compared if item.changed is not None]
    assert sum("other clients used" in (item.error or "") for item in found.compared) == (7 if others else 0)
    server: Any = Busy(others)
    rows = drafted(server, LONG)  # type: ignore[arg-type]
    known = [row.counts for row in rows if isinstance(row.counts, DraftCounts)]
    assert len(known) == (61 if others else 64)
    assert {each.rejected for each in known} == {2}


# -- what a server does not tell


UNTOLD_PROMPTS = 8


@pytest.fixture
def figures(local: Engine, known: dict[object, object]) -> Any:
    """What chat shows of that model, served with these faults: by metric and slice."""

    def measured(faults: Faults | None = None, **how: Any) -> dict[str, Measurement]:
        family = Family.load(REPOSITORY / "data" / "families" / "sandbox.yaml")
        with endpoint_of(Chatting(local, faults=faults or Faults(), known=known, max_logprobs=20, **how)) as endpoint:
            asked = ask_chat(endpoint, Prompts(endpoint.tokenizer, family).for_chat(UNTOLD_PROMPTS))
        found = (prompts_measured(asked), streams_measured(asked), *parser_measured(asked))
        return {f"{each.metric} {each.slice}": each for each in found}

    return measured


def test_calls_among_up_to_64_tools_are_asked_where_the_context_holds_them(local: Engine) -> None:
    family = Family.load(REPOSITORY / "data" / "families" / "qwen3.6-35b-a3b.yaml")
    offered = {len(prompt.tools) for prompt in Prompts(local.tokenizer, family).for_chat(64)}
    assert {2, 8, 16, 32, 64} <= offered


def test_a_template_without_tools_and_reasoning_is_asked_for_neither(local: Engine) -> None:
    template = {"template": ChatTemplate(tools=False, results=False, thinking="never"), "tool_format": None}
    family = Family.load(REPOSITORY / "data" / "families" / "sandbox.yaml").model_copy(update=template)
    plan = Plan(items=4, conversations=1, turns=2, concurrency=2, load_requests=4)
    with endpoint_of(Chatting(local, by_rule=True)) as endpoint:
        figures = list(measure_served(endpoint, family, plan, Progress()))
    found = {f"{each.metric} {each.slice}": each for each in figures if isinstance(each, Measurement)}
    assert all(seen(found[name]) == (0, 4, 0) for name in ("prompt_differences all", "parser_faults content"))
    asked_of = {kind for kind in ("arguments", "calls", "finish", "thought") if f"parser_faults {kind}" in found}
    assert not asked_of | {name for name in found if "call_failure" in name}
    assert {each.kind for each in figures if isinstance(each, ProbeFailure)} >= {"no-tools", "no-reasoning"}


def seen(measurement: Measurement) -> tuple[float | None, int, int]:
    return measurement.value, measurement.counts.scored, measurement.counts.errored


@pytest.mark.long
def test_what_agrees_with_what_the_model_writes_twice_is_right(figures: Any) -> None:
    found = figures(returns_chat_ids=False)
    assert seen(found["prompt_differences all"]) == (0, UNTOLD_PROMPTS, 0)
    assert seen(found["stream_faults chat"]) == (0, UNTOLD_PROMPTS, 0)
    for kind in ("calls", "tags", "thought", "content"):
        value, scored, errored = seen(found[f"parser_faults {kind}"])
        assert (value, errored) == (0, 0)
        assert scored


@pytest.mark.long
@pytest.mark.parametrize("fault", ["turned", "leaked_tags"])  # by a near tie, or by a broken parser
def test_another_text_is_no_fault_of_the_parser_without_ids_and_passes_nothing(figures: Any, fault: str) -> None:
    faults = Faults(**{fault: True})
    tags = figures(faults, returns_chat_ids=False)["parser_faults tags"]
    assert seen(tags) == (0, 0, UNTOLD_PROMPTS)
    # where ids are returned it is held to its own tokens
    value, scored, errored = seen(figures(faults)["parser_faults tags"])
    assert (bool(value), bool(scored), errored) == (fault == "leaked_tags", True, 0)


@pytest.mark.long
def test_as_many_tokens_are_not_the_same_tokens(figures: Any) -> None:
    found = figures(returns_chat_ids=False, writes_prompts=False)
    prompts = found["prompt_differences all"]
    assert seen(prompts) == (0, 0, UNTOLD_PROMPTS)
    assert f"of {UNTOLD_PROMPTS} prompts only as many tokens are told" in prompts.note
    assert found["parser_faults tags"].counts.scored == 0


@pytest.mark.long
@pytest.mark.parametrize("writes_prompts", [True, False])
def test_another_template_is_seen_by_its_tokens_or_by_their_number(figures: Any, writes_prompts: bool) -> None:
    found = figures(Faults(other_template=True), returns_chat_ids=False, writes_prompts=writes_prompts)
    assert seen(found["prompt_differences all"]) == (UNTOLD_PROMPTS, UNTOLD_PROMPTS, 0)
