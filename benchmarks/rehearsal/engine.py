"""The engines in-process and vllm, but answers end where a stated distribution says: random weights never end one.

Used by `benchmarks.rehearsal.command` alone, which judges no branch. A request's length comes from its key, so
reference and branch, and every resumed run, have the same. What an answer holds is the model's own; of one with
reasoning the thought ends after three quarters.
"""

import math
import os
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.rehearsal.records import RECORDS
from benchmarks.rehearsal.running import SCALE
from q36eval.engines.base import Engine, EngineSettings, Generated, GenerationRequest, Scored, ScoreRequest
from q36eval.engines.in_process import InProcessEngine
from q36eval.engines.vllm.engine import VLLMEngine
from q36eval.records import DeploymentIdentity

SEED = 20261
SIGMA = 0.5
"""1 answer in 40 takes 2.7 times the median."""
MEDIANS = {160: 24, 384: 100, 512: 90, 768: 250, 1280: 400, 2048: 600}
"""Median tokens of an answer by the greatest budget that it is for, from what the family's file says of right answers:
111 to 125 at most of JSON and tool calls, 294 to 352 of discounts, 726 of articles."""
THINKING, THINKING_SIGMA = 1000, 0.6
"""Median and sigma with reasoning: nobody has measured one of this family. A short trace seen took 572 tokens, a card
serves with a budget of 8,192; of 120 answers the longest takes about 4,000 here."""
THOUGHT = 0.75
"""The share of an answer with reasoning that is its thought."""


class EndingBudget(int):
    """A budget of tokens whose answer ends before it: whoever plans with it sees all of it, `tokens >= budget` holds
    from `ends` on. So batches, caches and memory are those of the real budget."""

    ends: int = 0

    def __le__(self, tokens: int) -> bool:
        """The reflection of `tokens >= budget`, which Python asks first, of a subclass."""
        return self.ends <= tokens


def ending_budget(request: GenerationRequest, *, thinking: bool) -> EndingBudget:
    """The request's budget, ending at a log-normal length that its key seeds."""
    median, sigma = THINKING, THINKING_SIGMA
    if not thinking:
        median = next((tokens for most, tokens in MEDIANS.items() if request.max_new_tokens <= most), 600)
        sigma = SIGMA
    drawn = random.Random(f"{SEED}/{request.key}").lognormvariate(math.log(median), sigma)
    budget = EndingBudget(request.max_new_tokens)
    budget.ends = max(1, min(request.max_new_tokens, round(drawn * float(os.environ.get(SCALE, "1")))))
    return budget


class Forced(Engine):
    """See the module; stands before the engine whose answers it ends."""

    name = ""
    """The folder of its checkpoint."""

    @classmethod
    def load(cls, settings: Any) -> Any:
        """As that engine; what it took is recorded."""
        folder = settings.folder if isinstance(settings, EngineSettings) else settings
        with RECORDS.loading(folder):
            engine = super().load(settings)
        if isinstance(engine, cls):  # one that reads layer by layer gives no answers
            engine.name = folder.name
        plan = getattr(engine, "plan", None)
        RECORDS.planned(None if plan is None else str(plan))
        return engine

    @classmethod
    def identity_of(cls, settings: Any) -> DeploymentIdentity:
        """As that engine, and that lengths were forced: no capture of it is ever taken for a real one."""
        identity = super().identity_of(settings)
        return identity.model_copy(update={"settings": identity.settings | {"forced_lengths": str(SEED)}})

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        """As that engine, recorded."""
        for scored in super().score(requests, known):
            RECORDS.scored(self.name, scored)
            yield scored

    def generate(self, requests: Sequence[GenerationRequest], known: Collection[str] = ()) -> Iterator[Generated]:
        """As that engine, with answers that end, recorded.

        Raises:
            RuntimeError: an answer went on past its end: the engine no longer stops where a budget says.
        """
        ending = {request.key: ending_budget(request, thinking=self._thinks(request)) for request in requests}
        for generated in super().generate([replace(r, max_new_tokens=ending[r.key]) for r in requests], known):
            if len(generated.token_ids) > ending[generated.request.key].ends:
                raise RuntimeError("an answer is longer than it was forced to be")
            answer = self._ended(generated)
            RECORDS.generated(self.name, answer)
            yield answer

    def _thinks(self, request: GenerationRequest) -> bool:
        """Whether the prompt leaves a thought open."""
        return str(self.tokenizer.decode(request.token_ids[-8:])).rstrip().endswith("<think>")

    def _ended(self, answer: Generated) -> Generated:
        """The answer as one that ended by itself, after its thought where it has one."""
        tokens, text = list(answer.token_ids), answer.text
        if tokens and self._thinks(answer.request):
            end = self.tokenizer.encode("</think>\n\n", add_special_tokens=False)
            at = int(len(tokens) * THOUGHT)
            tokens[at : at + len(end)] = end[: len(tokens) - at]
            text = self.tokenizer.decode(tokens)
        answer = replace(answer, token_ids=tuple(tokens), text=text)
        if answer.finish_reason == "length" and len(tokens) < int(answer.request.max_new_tokens):
            return replace(answer, finish_reason="stop", end_id=int(self.tokenizer.eos_token_id))
        return answer


class ForcedLengths(Forced, InProcessEngine):
    """The engine in-process."""


class ForcedVLLM(Forced, VLLMEngine):
    """vLLM, which is asked for no more tokens than an answer is to have."""

    def _sampling(self, request: GenerationRequest) -> dict[str, Any]:
        assert isinstance(request.max_new_tokens, EndingBudget)
        return super()._sampling(request) | {"max_tokens": request.max_new_tokens.ends}
