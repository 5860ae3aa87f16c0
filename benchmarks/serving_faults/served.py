"""The criteria of the policy `served`, each by the one comparison of an endpoint with itself that shows a fault."""

from collections.abc import Callable, Iterator, Sequence

from benchmarks.serving_faults.judging import Said, said_of_report
from benchmarks.serving_faults.server import Model
from q36eval.engines import EngineOptions
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.gate import decide
from q36eval.records import Measurement
from q36eval.served.chat import ask_chat, completions_streamed, parser_measured, prompts_measured, streams_measured
from q36eval.served.comparison import cut_in_half, greedy_measured, measured_differences
from q36eval.served.declared_server import Plan
from q36eval.served.differentials import Alone, answers, cache_hit, concurrency
from q36eval.served.prompts import Prompts
from tests.q36eval.served.judging import few_prompts_policy

CONCURRENCY = 16
"""The server answers no more at once."""


class Differentials:
    """One endpoint, and what of it may be compared."""

    def __init__(self, model: Model, address: str, items: int) -> None:
        self._endpoint = Endpoint.load(EngineOptions(kind="openai", base_url=address).of(model.folder))
        self._prompts = Prompts(self._endpoint.tokenizer, model.family)
        self._plan = Plan(items, concurrency=CONCURRENCY)
        self._policy = few_prompts_policy() if items < Plan.items else model.policy("served")
        self.parts: dict[str, Callable[[], Iterator[Measurement]]] = {
            "greedy": self._greedy,
            "streaming": self._streaming,
            "concurrency": self._concurrency,
            "chat": self._chat,
            "cache-hit": self._cache_hit,
        }

    def said_of(self, parts: Sequence[str]) -> Said:
        """What the policy's criteria say of those comparisons alone, as the endpoint is now."""
        measured = [each for part in parts for each in self.parts[part]()]
        keys = {each.key for each in measured}
        criteria = tuple(each for each in self._policy.criteria if each.key in keys)
        return said_of_report(decide(self._policy.model_copy(update={"criteria": criteria}), measured), "served")

    def _greedy(self) -> Iterator[Measurement]:
        halves = cut_in_half(self._prompts.short(self._plan.items))
        yield greedy_measured(halves, answers(self._endpoint, halves))

    def _streaming(self) -> Iterator[Measurement]:
        alone = Alone.of(self._endpoint, self._prompts, self._plan)
        streams = answers(self._endpoint, alone.prompts, stream=True)
        yield completions_streamed(alone.prompts, alone.baseline, streams)
        yield measured_differences("streaming", alone.against(streams), "streamed against whole")

    def _concurrency(self) -> Iterator[Measurement]:
        alone = Alone.of(self._endpoint, self._prompts, self._plan)
        found = concurrency(self._endpoint, alone, self._plan)
        yield measured_differences("concurrency", found.compared, found.how)

    def _chat(self) -> Iterator[Measurement]:
        asked = ask_chat(self._endpoint, self._prompts.for_chat(self._plan.items))
        yield prompts_measured(asked)
        yield from parser_measured(asked)
        yield streams_measured(asked)

    def _cache_hit(self) -> Iterator[Measurement]:
        alone = Alone.of(self._endpoint, self._prompts, self._plan)
        found = cache_hit(self._endpoint, self._prompts, self._plan, alone)
        yield measured_differences("cache-hit", found.compared, found.how)
