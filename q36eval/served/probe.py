"""The probe `served`: every differential in turn, each figure as it comes. It asks an endpoint, never a reference."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from q36eval.config import Family
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.errors import EngineError
from q36eval.probes import Progress
from q36eval.records import Measurement, ProbeFailure, ProbeName
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
    streaming,
)
from q36eval.served.drafts import drafted, rejected_measured
from q36eval.served.prompts import Prompts

Figure = Measurement | ProbeFailure

UNSOUND_SHARE = 0.01
"""Of a part's requests at most so many may need another attempt because the server failed, or answered what is no
answer. What is asked again until it is right would hide the very faults that are looked for."""


class _Asking:
    """One run: the server that is judged, the second one beside it, and how both are asked."""

    def __init__(self, endpoint: Endpoint, other: Endpoint | None, progress: Progress) -> None:
        self._endpoint, self._progress = endpoint, progress
        self._servers = [endpoint] if other is None else [endpoint, other]

    def attempts(self) -> tuple[int, int]:
        """Of both endpoints together: how often they were asked, and how often without a usable answer."""
        told = [each.attempts() for each in self._servers]
        return sum(sent for sent, _ in told), sum(unsound for _, unsound in told)

    def unless_unsound(self, part: str, begun: tuple[int, int], figures: Iterable[Figure]) -> Iterator[Figure]:
        """The figures of what was asked since then, or why it is not judged."""
        sent, unsound = (now - then for now, then in zip(self.attempts(), begun, strict=True))
        if unsound <= UNSOUND_SHARE * sent:
            yield from figures
            return
        reason = f"{part}: {unsound} of {sent} requests ended without an answer that can be used, or with another's"
        last = next((each.last_unsound for each in self._servers if each.last_unsound), "")
        reason += f"; the last: {last}" if last else ""
        yield ProbeFailure(probe=ProbeName.SERVED, reason=reason, kind="skipped")

    def difference(self, part: str, ask: Callable[[], Found]) -> Iterator[Figure]:
        """One differential."""
        self._progress.stage(PARTS[part], 1)
        begun = self.attempts()
        try:
            found = ask()
            self._endpoint.confirm()
        except CannotBeMeasuredError as error:
            yield ProbeFailure(probe=ProbeName.SERVED, reason=f"{part}: {error}", kind="skipped")
            return
        except EngineError as error:
            raise EngineError(error.code, f"While it was asked for {PARTS[part]}: {error}") from error
        yield from self.unless_unsound(part, begun, [measured_differences(part, found.compared, found.how)])
        self._progress.advance()


def measure_served(
    endpoint: Endpoint, family: Family | None, plan: Plan, progress: Progress, other: Endpoint | None = None
) -> Iterator[Figure]:
    """Every figure; of what the endpoint lacks the means for, a failure that says what it lacks.

    Raises:
        EngineError: the server does not answer any more, or is not the one it was.
    """
    prompts = Prompts(endpoint.tokenizer, family)
    with_tools = prompts.with_tools(plan.items)  # where there are too few, that is said before anything is asked
    run = _Asking(endpoint, other, progress)
    progress.stage("asking alone", 1)
    alone = Alone.of(endpoint, prompts, plan)
    progress.advance()
    progress.stage(PARTS["greedy"], 1)
    halves = cut_in_half(alone.prompts)
    yield greedy_measured(halves, answers(endpoint, halves))
    progress.advance()
    begun = run.attempts()
    streams = answers(endpoint, alone.prompts, stream=True)
    streamed = completions_streamed(alone.prompts, alone.baseline, streams)
    compared = run.difference("streaming", lambda: streaming(alone, streams))
    yield from run.unless_unsound("streaming", begun, chain(compared, [streamed]))
    if other is not None:  # before it is asked anything else

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
        progress.stage(PARTS["drafts"], 1)
        begun = run.attempts()
        rows = drafted(endpoint, alone.prompts)
        endpoint.confirm()
        yield from run.unless_unsound("drafts", begun, [rejected_measured(rows, after.since(before_load))])
        progress.advance()
    progress.stage(PARTS["chat"], 1)
    begun = run.attempts()
    asked = ask_chat(endpoint, with_tools)
    endpoint.confirm()
    of_all = [prompts_measured(asked), streams_measured(asked), *parser_measured(asked), calls_measured(asked)]
    yield from run.unless_unsound("chat", begun, of_all)
    progress.advance()
    yield from run.difference("cache-hit", lambda: cache_hit(endpoint, prompts, plan))
    yield from run.difference("conversation", lambda: conversation(endpoint, prompts, plan))
    yield from run.difference("eviction", lambda: eviction(endpoint, prompts, plan))
