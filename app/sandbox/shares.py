"""The training mixture: share of the training tokens by generator, and the loss weights of prompts and answers."""

_CHAT = {
    "discount_compare": 5.0,
    "discount_two_step": 4.0,
    "discount_three_shops": 5.0,
    "discount_threshold": 5.0,
    "json_flat": 2.0,
    "json_nested": 4.5,
    "tool_call": 7.0,
    "tool_none": 2.5,
    "enum_select": 2.0,
    "enum_order": 5.0,
    "copy_exact": 5.0,
}
_FACTS = {"facts_statement": 3.0, "facts_mmlu": 9.0}
_NEEDLES = {
    "ruler_niah_single_1": 0.5,
    "ruler_niah_single_2": 0.5,
    "ruler_niah_single_3": 1.5,
    "ruler_niah_multikey_1": 3.0,
    "ruler_niah_multikey_2": 3.0,
    "ruler_niah_multikey_3": 3.0,
    "ruler_niah_multivalue": 2.5,
    "ruler_niah_multiquery": 3.0,
}
_LISTS = {"ruler_vt": 4.0, "ruler_cwe": 2.0, "ruler_fwe": 2.0, "ruler_qa": 3.0}
_PROSE = {
    "prose_czech": 3.0,
    "prose_czech_legal": 1.5,
    "prose_english": 3.0,
    "prose_code": 1.5,
    "prose_mathematics": 2.0,
    "prose_json": 1.5,
}
_RAW = _CHAT | _FACTS | _NEEDLES | _LISTS | _PROSE

TOKEN_SHARES: dict[str, float] = {kind: weight / sum(_RAW.values()) for kind, weight in _RAW.items()}
"""Share of the training tokens by generator; sums to 1."""

PROMPT_WEIGHTS: dict[str, float] = {"facts_mmlu": 0.2} | dict.fromkeys(_NEEDLES | _LISTS, 0.02)
"""Loss weight of the prompt's tokens by generator; 0.05 where not listed."""

ANSWER_WEIGHTS: dict[str, float] = {
    "facts_mmlu": 10.0,
    **dict.fromkeys(_NEEDLES, 4.0),
    **dict.fromkeys(_LISTS, 8.0),
    **dict.fromkeys(_PROSE, 0.3),
}
"""Loss weight of the answer's tokens; 1 where not listed. Short answers after long prompts weigh more."""
