"""No text, however mangled, makes a checker raise or give a report that cannot be written."""

import json
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from canaries.checks import run_checks
from canaries.specification import load_specs

PROMPTS = [
    (spec.checks, prompt.expected, tuple(prompt.tools), prompt.answer)
    for spec in load_specs()
    for prompt in spec.must_pass or ()
]
FRAGMENTS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<function=", "<function=book>", "</function>", "<parameter=a>", "</parameter>",
        "{", "}", "[", "]", '"', "\\u", "\\ud800", "NaN", "-Infinity", "1e999", "9" * 5000, ":", ",", "\n", " ", "0.",
        "Obchod A", "obchodě B", "levnější", "než", "2 400", "−", "=", "15 % z ", "Kč", "nastejno", "```json\n", "```",
        "²", "٣", "\u0000", "\ud800", "true", "null",
    ]
)  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(st.one_of(FRAGMENTS, st.text(max_size=4)), max_size=25).map("".join))


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
@example(text="[" * 100_000)
@example(text='{"a":' * 50_000)
@example(text="9" * 100_000)
@example(text="1 000" + " 000" * 10_000 + " − 1 = 2")
@example(text="<tool_call>" * 2_000)
@example(text="<parameter=a>" * 2_000 + "</tool_call>")
def test_no_text_makes_a_checker_raise(text: str) -> None:
    seen = set()
    for checks, expected, tools, _ in PROMPTS:
        if tuple(checks) in seen:
            continue
        seen.add(tuple(checks))
        failures = run_checks(text, checks, expected, tools)
        json.dumps([failure.as_dict() for failure in failures], ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("seed", range(20))
def test_a_changed_answer_never_raises_and_a_cut_one_never_passes(seed: int) -> None:
    rng = random.Random(seed)
    for checks, expected, tools, answer in PROMPTS:
        at = rng.randrange(len(answer))
        changed = answer[:at] + rng.choice('x0"<}\n') + answer[at + 1 :]
        run_checks(changed, checks, expected, tools)
        cut = answer[: len(answer) * rng.randrange(1, 8) // 10]
        assert run_checks(cut, checks, expected, tools), f"{checks}: {cut!r} passes"
