"""Kinds of tokens on adversarial text, by the tokenizer's offsets and by decoding ids, which must agree."""

from typing import Any

import pytest

from q36eval.kl.spans import JSON, character_kinds, decoded_spans, text_kinds, token_kinds

CALL = "<tool_call>\n<function=f>\n<parameter=k>\n{x}\n</parameter>\n</function>\n</tool_call>"
HERMES = '<tool_call>{"name": "f", "arguments": {"a": "}"}}</tool_call>'


def marked(text: str) -> str:
    """One letter per character: t, j or c."""
    return "".join("tjc"[kind] for kind in character_kinds(text))


@pytest.mark.parametrize(
    ("before", "inside", "after", "kind"),
    [
        ("so: ", '{"a": [1, {"b": "}]{\\""}]}', " done", "j"),
        ("```json\n", '[{"a": 1}, null]', "\n```", "j"),
        ("{oops ", '{"inner": true}', " }", "j"),
        ("a { b [ x ", "[1, 2]", " ] }", "j"),
        ('{"x": NaN} ', "[]", " {'single': 1}", "j"),
        ("call ", CALL, "<|im_end|>", "c"),
        ("", HERMES, "</tool_call>", "c"),
        ("write <tool_call> then ", CALL, "", "c"),
    ],
)
def test_characters(before: str, inside: str, after: str, kind: str) -> None:
    assert marked(before + inside + after) == "t" * len(before) + kind * len(inside) + "t" * len(after)


def test_what_is_never_closed_is_text_but_what_it_holds_counts() -> None:
    assert set(marked("<tool_call>\n<function=f>\n")) == {"t"}
    assert set(marked('{"a": 1')) == {"t"}
    assert marked('<tool_call>{"a": 1}') == "t" * 11 + "j" * 8


@pytest.mark.long
def test_deep_nesting_is_refused_and_not_a_crash() -> None:
    assert set(marked("[" * 5000)) == {"t"}


@pytest.mark.parametrize(
    "text",
    [
        'Účet 🙂 {"emoji": "👩‍👩‍👧 🇨🇿", "c": "č"} konec 🙂',
        f"<|im_start|>user\n🙂{CALL}🙂<|im_end|>\n",
        "漢字[1]漢",
    ],
)
def test_spans_of_decoded_ids_are_the_tokenizers_own_offsets(tokenizer: Any, text: str) -> None:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    decoded, spans = decoded_spans(tokenizer, encoded["input_ids"])
    assert decoded == text
    # the tokenizer trims leading spaces off its offsets; what is left must be the same
    trimmed = [(end - len(text[begin:end].lstrip(" ") or text[begin:end]), end) for begin, end in spans]
    offsets = [(end - len(text[b:end].lstrip(" ") or text[b:end]), end) for b, end in encoded["offset_mapping"]]
    assert trimmed == offsets
    assert len(set(spans)) < len(spans), "no character spans several tokens: the text shows nothing"
    ids, kinds = text_kinds(tokenizer, text)
    assert list(ids) == encoded["input_ids"]
    assert token_kinds(tokenizer, ids).tolist() == kinds.tolist()


def test_ids_that_are_no_utf8_have_kinds_too(tokenizer: Any) -> None:
    emoji = tokenizer.encode("🙂", add_special_tokens=False)
    ids = [emoji[1]] * 9 + emoji[:1] * 2 + tokenizer.encode('{"a": 1}', add_special_tokens=False) + emoji[:3]
    kinds = token_kinds(tokenizer, ids)
    assert len(kinds) == len(ids)
    assert JSON in kinds.tolist()
    assert token_kinds(tokenizer, []).tolist() == []


class Counting:
    """Counts how many ids were decoded in all."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.decoded = tokenizer, 0

    def decode(self, ids: Any, **settings: Any) -> str:
        self.decoded += len(ids)
        return str(self.tokenizer.decode(ids, **settings))


def test_decoding_takes_linear_time_whatever_the_bytes(tokenizer: Any) -> None:
    counting = Counting(tokenizer)
    broken = tokenizer.encode("🙂", add_special_tokens=False)[1]
    decoded_spans(counting, [broken] * 400)
    assert counting.decoded < 20 * 400
