"""The probe `served`: every differential in turn, each figure as it arrives. It queries only an endpoint."""

from collections.abc import Callable, Iterable, Iterator

from q36eval.config import Family
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.errors import EngineError
from q36eval.probes import Progress
from q36eval.records import LACKED, FailureKind, Measurement, ProbeFailure, ProbeName
from q36eval.served.chat import (
    ask_chat,
    calls_measured,
    completions_streamed,
    parser_measured,
    prompts_measured,
    streams_measured,
)
from q36eval.served.comparison import cut_in_half, greedy_measured, measured_differences
from q36eval.served.declared_server import PARTS, Plan
from q36eval.served.differentials import (
    Alone,
    CannotBeMeasuredError,
    Found,
    after_load,
    answers,
    cache_hit,
    concurrency,
    conversation,
    endpoints,
    eviction,
)
from q36eval.served.drafts import drafted, rejected_measured
from q36eval.served.prompts import Prompts

Figure = Measurement | ProbeFailure

UNSOUND_SHARE = 0.01
"""The maximum share of a part's requests that may need a retry because of a server error or an invalid answer.
Unlimited retries would hide the very faults that the probe looks for."""


class _Asking:
    """One run: the judged server, the second one, and their settings."""

    def __init__(self, endpoint: Endpoint, other: Endpoint | None, progress: Progress) -> None:
        self._endpoint, self._progress = endpoint, progress
        self._servers = [endpoint] if other is None else [endpoint, other]

    def attempts(self) -> tuple[int, int]:
        """For both endpoints together: the number of attempts, and of those without a usable answer."""
        told = [each.attempts() for each in self._servers]
        return sum(sent for sent, _ in told), sum(unsound for _, unsound in told)

    def part(self, part: str, ask: Callable[[], Iterable[Figure]]) -> Iterator[Figure]:
        """The figures of one part, or the reason why it is not judged."""
        self._progress.stage(PARTS[part], 1)
        begun, refusal = self.attempts(), ""
        try:
            figures = ask()
            self._endpoint.confirm()
        except CannotBeMeasuredError as error:
            figures, refusal = (), str(error)
        except EngineError as error:
            raise EngineError(error.code, f"While it was asked for {PARTS[part]}: {error}") from error
        sent, unsound = (now - then for now, then in zip(self.attempts(), begun, strict=True))
        if not refusal and unsound > UNSOUND_SHARE * sent:
            refusal = f"{unsound} of {sent} requests ended without an answer that can be used, or with another's"
            refusal += "".join(f"; the last: {each.last_unsound}" for each in self._servers if each.last_unsound)
        if refusal:
            yield ProbeFailure(probe=ProbeName.SERVED, reason=f"{part}: {refusal}", kind="skipped")
        else:
            yield from figures
        self._progress.advance()

    def difference(self, part: str, ask: Callable[[], Found]) -> Iterator[Figure]:
        """One differential."""
        yield from self.part(part, lambda: [measured_differences(part, (found := ask()).compared, found.how)])


def measure_served(
    endpoint: Endpoint, family: Family | None, plan: Plan, progress: Progress, other: Endpoint | None = None
) -> Iterator[Figure]:
    """Every figure; for a missing prerequisite of the endpoint, a failure that names it.

    Raises:
        EngineError: the server does not answer any more, or changed.
    """
    prompts = Prompts(endpoint.tokenizer, family)
    for_chat = prompts.for_chat(plan.items)  # too few are reported before any request
    run = _Asking(endpoint, other, progress)
    progress.stage("asking alone", 1)
    alone = Alone.of(endpoint, prompts, plan)
    progress.advance()
    halves = cut_in_half(alone.prompts)
    yield from run.part("greedy", lambda: [greedy_measured(halves, answers(endpoint, halves))])

    def of_streams() -> list[Measurement]:
        streams = answers(endpoint, alone.prompts, stream=True)
        found = alone.against(streams)
        compared = measured_differences("streaming", found, "raw completions, streamed against whole")
        return [compared, completions_streamed(alone.prompts, alone.baseline, streams)]

    yield from run.part("streaming", of_streams)
    if other is not None:  # before its first other request

        def of_both() -> Found:
            found = endpoints(endpoint, other, alone, plan)
            other.confirm()
            return found

        yield from run.difference("endpoints", of_both)
    yield from run.difference("concurrency", lambda: concurrency(endpoint, alone, plan))
    before_load = endpoint.draft_counts()
    yield from run.difference("load", lambda: after_load(endpoint, prompts, alone, plan))
    after = endpoint.draft_counts()
    if before_load is not None and after is not None:
        counts = after.since(before_load)
        yield from run.part("drafts", lambda: [rejected_measured(drafted(endpoint, alone.prompts), counts)])

    no_tools = family is not None and not family.template.tools
    lacks: dict[FailureKind, bool] = {"no-tools": no_tools, "no-reasoning": not prompts.thinks}
    lacked = {f"served.{name}" for kind, names in LACKED.items() if lacks[kind] for name in names}

    def of_chat() -> list[Measurement]:
        asked = ask_chat(endpoint, for_chat)
        calls = [calls_measured(asked)] if prompts.tools else []
        parser = [each for each in parser_measured(asked) if calls or each.slice != "calls"]
        of_all = [prompts_measured(asked), streams_measured(asked), *parser, *calls]
        return [figure for figure in of_all if figure.counts.total and figure.key not in lacked]

    yield from run.part("chat", of_chat)
    for kind in (kind for kind, missing in lacks.items() if missing):
        reason = f"the branch's chat template writes {kind.replace('-', ' ')} that q36eval can request"
        yield ProbeFailure(probe=ProbeName.SERVED, reason=reason, kind=kind)
    if not (no_tools or prompts.tools):
        reason = "chat: q36eval cannot parse the tool calls of the branch's chat template"
        yield ProbeFailure(probe=ProbeName.SERVED, reason=reason, kind="skipped")
    yield from run.difference("cache-hit", lambda: cache_hit(endpoint, prompts, plan, alone))
    yield from run.difference("conversation", lambda: conversation(endpoint, prompts, plan, alone))
    yield from run.difference("eviction", lambda: eviction(endpoint, prompts, plan))
