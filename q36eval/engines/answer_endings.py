"""Settings of an answer, its end, and its text after generation: the same for every engine."""

import hashlib
from collections.abc import Collection, Sequence
from typing import Any

from q36eval.checkpoints.open_files import HeldFolder
from q36eval.engines.base import Generated, GenerationRequest
from q36eval.errors import CorruptCheckpointError


def end_ids(configured: Any, tokenizer: Any) -> list[int]:
    """End-of-turn ids of a generation config's `eos_token_id` and of the tokenizer, without one that only pads.

    Raises:
        CorruptCheckpointError: `configured` holds something other than token ids.
    """
    given = [each for each in (configured if isinstance(configured, list) else [configured]) if each is not None]
    if wrong := [each for each in given if type(each) is not int]:
        told = f"{tokenizer.name_or_path}: eos_token_id holds {str(wrong[0])[:40]!r}, which is not a token id."
        raise CorruptCheckpointError("ends-malformed", told)
    return sorted({*given, tokenizer.eos_token_id} - {None})


def padding_id(tokenizer: Any) -> int:
    """The id for filling rows; it is masked, so any id works if the tokenizer has none."""
    return next((each for each in (tokenizer.pad_token_id, tokenizer.eos_token_id) if each is not None), 0)


def configured_end(held: HeldFolder) -> Any:
    """`eos_token_id` of generation_config.json, or of config.json without that file, as in transformers."""
    from q36eval.checkpoints import open_checkpoint
    from q36eval.checkpoints.architecture import Architecture

    if "generation_config.json" not in held:
        return Architecture.of(open_checkpoint(held)).config.eos_token_id
    return held.json("generation_config.json").get("eos_token_id")


def finished(tokenizer: Any, stop_ids: Collection[int], request: GenerationRequest, tokens: Sequence[int]) -> Generated:
    """The answer in `tokens`: everything before the first end-of-turn id, its text cut before a stop string."""
    end = next((at for at, token in enumerate(tokens) if token in stop_ids), None)
    kept = tuple(tokens[:end])
    text = tokenizer.decode(kept, skip_special_tokens=False)
    reason = "length" if end is None else "stop"
    cuts = [at for stop in request.stop if (at := text.find(stop)) >= 0]
    if cuts:
        text, reason = text[: min(cuts)], "stop"
    return Generated(request, kept, text, reason, end_id=None if end is None else tokens[end])


def engine_seed(request: GenerationRequest) -> int:
    """The seed for an engine that draws its own numbers, from the request's seed and key alone: 31 bits."""
    return int.from_bytes(hashlib.sha256(f"{request.seed}/{request.key}".encode()).digest()[:4], "big") >> 1
