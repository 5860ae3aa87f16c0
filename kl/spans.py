"""The kind of each token: part of a tool call, of JSON, or of text. Found in the text and mapped to the tokens."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

KINDS = ("text", "json", "tool_call")
"""Names of the kinds by their number; if two apply, the larger number wins."""

TEXT, JSON, TOOL_CALL = range(len(KINDS))

_TOOL_CALL = re.compile(r"<tool_call>(?:(?!<tool_call>).)*?</tool_call>", re.DOTALL)
_OPENING = re.compile(r"[{\[]")
_REPLACEMENT = "\ufffd"
_LONGEST_CHARACTER = 4
"""Bytes of a UTF-8 character, so also the maximum number of tokens in one valid character."""

Span = tuple[int, int]


def token_kinds(tokenizer: Any, token_ids: Sequence[int]) -> NDArray[np.uint8]:
    """The kind of every token, as an index into `KINDS`: uint8 [T]. For ids that were generated.

    A token has the kind of any of its characters.
    """
    text, spans = decoded_spans(tokenizer, token_ids)
    return _of_tokens(character_kinds(text), spans)


def text_kinds(tokenizer: Any, text: str) -> tuple[tuple[int, ...], NDArray[np.uint8]]:
    """The token ids of a text, with its special tokens parsed and none added, and their kinds: uint8 [T]."""
    if not getattr(tokenizer, "is_fast", False):
        token_ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        return token_ids, token_kinds(tokenizer, token_ids)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return tuple(encoded["input_ids"]), _of_tokens(character_kinds(text), encoded["offset_mapping"])


def character_kinds(text: str) -> NDArray[np.uint8]:
    """The kind of every character: uint8 [len(text)].

    A tool call is everything from `<tool_call>` to its `</tool_call>`, tags included; an unclosed one does not count.
    JSON is every outermost object or array that parses, bare or fenced, including those inside text that does not.
    """
    kinds = np.full(len(text), TEXT, dtype=np.uint8)
    for begin, end in json_spans(text):
        kinds[begin:end] = JSON
    for call in _TOOL_CALL.finditer(text):
        kinds[call.start() : call.end()] = TOOL_CALL
    return kinds


def json_spans(text: str) -> Iterator[Span]:
    """The spans of the outermost objects and arrays of RFC 8259 (without NaN and Infinity), in order."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    at = 0
    while (opening := _OPENING.search(text, at)) is not None:
        begin = opening.start()
        try:
            _, at = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            at = begin + 1
        else:
            yield begin, at


def decoded_spans(tokenizer: Any, token_ids: Sequence[int]) -> tuple[str, list[Span]]:
    """The decoded text and the characters of every token in it, `(begin, end)`.

    Tokens that hold parts of one UTF-8 character all map to that character. Decoding goes token by token with one token
    of context on the left, which decoders with a leading space need, so it takes linear time.
    """
    text, spans = "", list[Span]()
    context, read = 0, 0  # ids[context:read] are decoded already, ids[read:] are not
    known = ""
    whole_characters = list[int]()  # of the pending tokens
    for end in range(1, len(token_ids) + 1):
        decoded = tokenizer.decode(
            token_ids[context:end], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        new = decoded[len(known) :]
        whole_characters.append(len(new.rstrip(_REPLACEMENT)))
        pending = len(whole_characters)
        if new.endswith(_REPLACEMENT) and pending < _LONGEST_CHARACTER and end < len(token_ids):
            continue
        spans += _pending_spans(len(text), len(new), whole_characters)
        text += new
        context, read = read, end
        known = tokenizer.decode(token_ids[context:read], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        whole_characters = []
    return text, spans


def _pending_spans(offset: int, length: int, whole_characters: Sequence[int]) -> Iterator[Span]:
    """Spans of tokens that were decoded together into `length` characters.

    `whole_characters[i]` is the number of complete characters after token i; a token ends within the next one unless it
    is the last.
    """
    begin = 0
    for position, whole in enumerate(whole_characters, start=1):
        end = length if position == len(whole_characters) else min(whole + 1, length)
        yield offset + begin, offset + end
        begin = whole


def _of_tokens(kinds: NDArray[np.uint8], spans: Sequence[Span]) -> NDArray[np.uint8]:
    """The largest kind among each token's characters; a token without any is text."""
    return np.array([kinds[begin:end].max(initial=TEXT) for begin, end in spans], dtype=np.uint8)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
