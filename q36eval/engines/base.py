"""The two primitives of an engine, `score` and `generate`, and what travels through them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from q36eval.records import DeploymentIdentity

if TYPE_CHECKING:
    import torch


Coupling = Literal["inverse_cdf", "gumbel"]
"""How random numbers become tokens, which decides how alike two deployments answer that draw the same numbers.

`inverse_cdf`: one uniform number picks a rank of the sorted nucleus; a small change of one probability moves every
boundary after it. `gumbel`: each token has noise of its own, by prompt, seed, position and token, and the greatest sum
of log-probability and noise wins; two distributions of total variation d differ in at most 2d / (1 + d) of draws, and
nothing that draws each side by itself does better in the worst case (Daliri et al. 2024, arXiv 2408.07978).
"""


@dataclass(frozen=True)
class ScoreRequest:
    """Teacher-force `token_ids` and return what predicts `token_ids[first:]` (so `first >= 1`).

    Requests of different `group`s never share a batch: what else is asked in the same run changes no number. The first
    `shared` tokens are those of other requests of the group too, so that an engine may compute them once; that it does
    changes no more than another batch would.
    """

    key: str
    token_ids: tuple[int, ...]
    first: int = 1
    group: str = ""
    shared: int = 0


@dataclass(frozen=True)
class Scored:
    """Row t of `hidden_states` [len(token_ids) - first, H], after the final norm, predicts `token_ids[first + t]`.

    `error` is set instead when the engine could not score the request, `permanent` where asking again would not help.
    `seconds` is its part of the time its batch took to compute; 0 where the engine does not know.
    """

    request: ScoreRequest
    hidden_states: "torch.Tensor | None"
    error: str | None = None
    seconds: float = 0.0
    permanent: bool = False


@dataclass(frozen=True)
class GenerationRequest:
    """Continuation of `token_ids` until end of turn, a stop string or `max_new_tokens`; `group` and `shared` as above.

    Greedy at temperature 0, else sampled from the nucleus that holds `top_p` (of the `top_k` likeliest, where that is
    not 0), after `presence_penalty` was taken from the logit of every token answered before. An engine's random numbers
    for a request come from its `seed` and `key` alone, whatever else it is asked: two deployments asked the same draw
    the same numbers, and `coupling` says what becomes of them.
    """

    key: str
    token_ids: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    group: str = ""
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    shared: int = 0
    top_k: int = 0
    presence_penalty: float = 0.0
    coupling: Coupling = "inverse_cdf"


@dataclass(frozen=True)
class Generated:
    """The continuation: `text` is decoded without end-of-turn tokens, cut before a stop string.

    `finish_reason` is `stop` (end of turn or stop string), `length`, or `error`; `end_id` is the end-of-turn token that
    came after `token_ids`, where one did and the engine tells. `served_calls` are the tool calls that a server's own
    parser made of the text, as `{"name", "arguments"}`; None where the engine gives the text alone. `seconds` and
    `permanent` are those of `Scored`. So many `rows` the batch that answered had, this one included; 0 where the engine
    does not know.
    """

    request: GenerationRequest
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    error: str | None = None
    end_id: int | None = None
    seconds: float = 0.0
    permanent: bool = False
    rows: int = 0
    served_calls: "tuple[Mapping[str, Any], ...] | None" = None


class Engine(Protocol):
    """A deployment that answers. Results come in any order; each carries its request."""

    @property
    def identity(self) -> DeploymentIdentity: ...

    @property
    def tokenizer(self) -> Any: ...

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        """A result for every request whose key is not `known`.

        Those that are known only stand for what was asked with them: an engine that forms batches forms them from all
        requests, so that work which was interrupted continues with the same numbers.
        """
        ...

    def generate(self, requests: Sequence[GenerationRequest], known: Collection[str] = ()) -> Iterator[Generated]:
        """As `score`."""
        ...

    def logits(self, hidden_states: "torch.Tensor") -> "torch.Tensor":
        """Float32 logits [T, V] of final hidden states [T, H] through this deployment's own head."""
        ...

    def head_weight(self) -> "torch.Tensor":
        """The decoded output projection [V, H], for a capture that rebuilds this deployment's logits later.

        Raises:
            EngineError: the head quantizes its inputs, so that its weight alone does not give its logits.
        """
        ...


@runtime_checkable
class Deterministic(Protocol):
    """An engine that can say whether the same batches give the same numbers bit for bit, whenever they are asked."""

    @property
    def deterministic(self) -> bool: ...


Results = Iterable[Scored | Generated]
