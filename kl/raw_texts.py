"""The tokens before a raw text: the BOS token, or a chat prompt for a model that cannot read raw text."""

from collections.abc import Sequence
from typing import Any

from q36eval.chat import TemplateRaisedError, rendered_chat
from q36eval.engines.base import Engine, ScoreRequest
from q36eval.engines.retries import with_retry
from q36eval.errors import EngineError

REQUEST = "Write a text."
TEXTS = 9
"""One per slice of the suite `standard`: about 4,000 scored tokens in all, ten seconds of a small model."""

GAIN_NATS = 1.0
"""A chat prompt must reduce the mean loss per token by this much: for models that read raw text the gain is near 0."""


def leading_ids(tokenizer: Any) -> tuple[int, ...]:
    """The BOS token if the tokenizer itself puts it before a text, else nothing."""
    bos = getattr(tokenizer, "bos_token_id", None)
    return () if bos is None or list(tokenizer.encode(""))[:1] != [bos] else (bos,)


def writes_chats(tokenizer: Any) -> bool:
    """Whether the chat template renders a user's message; without one, no conversation is evaluated."""
    if not getattr(tokenizer, "chat_template", None):
        return False
    try:
        rendered_chat(tokenizer, [{"role": "user", "content": REQUEST}], enable_thinking=False)
    except TemplateRaisedError:
        return False
    return True


def raw_ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    """The token ids of a text, with BOS first if the tokenizer adds it and the text does not already have it."""
    return preceded(leading_ids(tokenizer), tuple(tokenizer.encode(text, add_special_tokens=False)))


def preceded(leading: tuple[int, ...], ids: tuple[int, ...]) -> tuple[int, ...]:
    """`ids` after `leading`, unless they already begin with the same token, like a rendered conversation."""
    return ids if leading[:1] == ids[:1] else leading + ids


def chat_prefix(engine: Engine, texts: Sequence[str]) -> tuple[int, ...]:
    """The token ids of the chat prompt before scored texts; empty if `engine`, the reference, reads raw text as well.

    Raises:
        EngineError: it could not score the texts, or the template does not render the prompt.
    """
    tokenizer = engine.tokenizer
    if not texts or engine.scores != "states" or not writes_chats(tokenizer):
        return ()
    prompt = rendered_chat(tokenizer, [{"role": "user", "content": REQUEST}], enable_thinking=False)
    prefix = tuple(tokenizer.encode(prompt, add_special_tokens=False))
    ids = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts[:TEXTS]]
    raw = _mean_loss(engine, leading_ids(tokenizer), ids)
    gain = raw - _mean_loss(engine, prefix, ids)
    return prefix if gain > GAIN_NATS else ()


def _mean_loss(engine: Engine, leading: tuple[int, ...], texts: Sequence[tuple[int, ...]]) -> float:
    """Nats per token after `leading`, always over the same tokens: all but the first of each text."""
    total, tokens = 0.0, 0
    requests = [
        ScoreRequest(f"prefix/{len(leading)}/{number}", preceded(leading, ids), len(preceded(leading, ids[:1])))
        for number, ids in enumerate(texts)
        if len(ids) > 1
    ]
    for scored in with_retry(engine.score, requests):
        if scored.hidden_states is None:
            raise EngineError("scoring-failed", f"The reference could not score the texts: {scored.error}.")
        labels = scored.request.token_ids[scored.request.first :]
        log_probs = engine.logits(scored.hidden_states).log_softmax(-1)
        total -= float(log_probs[range(len(labels)), list(labels)].double().sum())
        tokens += len(labels)
    return total / max(tokens, 1)
