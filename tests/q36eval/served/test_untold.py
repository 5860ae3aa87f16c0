"""Of a server that returns no token ids of chat answers: what is told of them all the same, and what is not."""

from typing import Any

import pytest

from q36eval.config import Family
from q36eval.config.family import ChatTemplate
from q36eval.engines import Engine
from q36eval.probes import Progress
from q36eval.records import Measurement, ProbeFailure
from q36eval.served.chat import ask_chat, parser_measured, prompts_measured, streams_measured
from q36eval.served.declared_server import Plan
from q36eval.served.probe import measure_served
from q36eval.served.prompts import Prompts
from tests.q36eval.served.chat_server import Chatting, Faults, endpoint_of
from tests.q36eval.served.judging import REPOSITORY

PROMPTS = 8


@pytest.fixture
def figures(local: Engine, known: dict[object, object]) -> Any:
    """What chat shows of that model, served with these faults: by metric and slice."""

    def measured(faults: Faults | None = None, **how: Any) -> dict[str, Measurement]:
        family = Family.load(REPOSITORY / "data" / "families" / "sandbox.yaml")
        with endpoint_of(Chatting(local, faults=faults or Faults(), known=known, max_logprobs=20, **how)) as endpoint:
            asked = ask_chat(endpoint, Prompts(endpoint.tokenizer, family).for_chat(PROMPTS))
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
    assert any("no tools and no reasoning" in each.reason for each in figures if isinstance(each, ProbeFailure))


def seen(measurement: Measurement) -> tuple[float | None, int, int]:
    return measurement.value, measurement.counts.scored, measurement.counts.errored


@pytest.mark.long
def test_what_agrees_with_what_the_model_writes_twice_is_right(figures: Any) -> None:
    found = figures(returns_chat_ids=False)
    assert seen(found["prompt_differences all"]) == (0, PROMPTS, 0)
    assert seen(found["stream_faults chat"]) == (0, PROMPTS, 0)
    for kind in ("calls", "tags", "thought", "content"):
        value, scored, errored = seen(found[f"parser_faults {kind}"])
        assert (value, errored) == (0, 0)
        assert scored


@pytest.mark.long
@pytest.mark.parametrize("fault", ["turned", "leaked_tags"])  # by a near tie, or by a broken parser
def test_another_text_is_no_fault_of_the_parser_without_ids_and_passes_nothing(figures: Any, fault: str) -> None:
    faults = Faults(**{fault: True})
    tags = figures(faults, returns_chat_ids=False)["parser_faults tags"]
    assert seen(tags) == (0, 0, PROMPTS)
    # where ids are returned it is held to its own tokens
    value, scored, errored = seen(figures(faults)["parser_faults tags"])
    assert (bool(value), bool(scored), errored) == (fault == "leaked_tags", True, 0)


@pytest.mark.long
def test_as_many_tokens_are_not_the_same_tokens(figures: Any) -> None:
    found = figures(returns_chat_ids=False, writes_prompts=False)
    prompts = found["prompt_differences all"]
    assert seen(prompts) == (0, 0, PROMPTS)
    assert f"of {PROMPTS} prompts only as many tokens are told" in prompts.note
    assert found["parser_faults tags"].counts.scored == 0


@pytest.mark.long
@pytest.mark.parametrize("writes_prompts", [True, False])
def test_another_template_is_seen_by_its_tokens_or_by_their_number(figures: Any, writes_prompts: bool) -> None:
    found = figures(Faults(other_template=True), returns_chat_ids=False, writes_prompts=writes_prompts)
    assert seen(found["prompt_differences all"]) == (PROMPTS, PROMPTS, 0)
