"""The training mixture: share of the training tokens by generator, and the loss weights of prompts and answers."""

_CHAT = {
    "discount_compare": 4.0,
    "discount_two_step": 4.0,
    "discount_three_shops": 4.0,
    "discount_threshold": 4.0,
    "discount_compare_last_line": 2.5,
    "discount_two_step_last_line": 2.5,
    "discount_three_shops_last_line": 2.5,
    "discount_threshold_last_line": 2.5,
    "discount_after_context": 2.5,
    "discount_after_context_last_line": 2.5,
    "json_flat": 2.0,
    "json_nested": 4.0,
    "tool_call": 6.0,
    "tool_none": 6.0,
    "enum_select": 2.0,
    "enum_order": 7.0,
    "copy_exact": 4.0,
}
_LOOKUPS = {"lookup_numbers": 5.0, "lookup_codes": 4.0, "lookup_offered": 2.0}
_FACTS = {"facts_statement": 2.0, "facts_mmlu": 9.0, "facts_binding": 1.0}
_NEEDLES = {
    "ruler_niah_single_1": 0.3,
    "ruler_niah_single_2": 0.4,
    "ruler_niah_single_3": 1.0,
    "ruler_niah_multikey_1": 3.0,
    "ruler_niah_multikey_2": 3.5,
    "ruler_niah_multikey_3": 3.0,
    "ruler_niah_multivalue": 1.5,
    "ruler_niah_multiquery": 2.5,
}
_LISTS = {"ruler_vt": 4.0, "ruler_cwe": 2.0, "ruler_fwe": 1.5, "ruler_qa": 3.0}
_PROSE = {
    "prose_czech": 2.5,
    "prose_czech_legal": 1.0,
    "prose_english": 2.5,
    "prose_code": 1.0,
    "prose_mathematics": 1.5,
    "prose_json": 1.0,
}
_RAW = _CHAT | _LOOKUPS | _FACTS | _NEEDLES | _LISTS | _PROSE

TOKEN_SHARES: dict[str, float] = {kind: weight / sum(_RAW.values()) for kind, weight in _RAW.items()}
"""Share of the training tokens by generator; sums to 1."""

_LAST = {kind: weight / sum(_RAW.values()) * 35 for kind, weight in _RAW.items()} | {
    "tool_call": 20.0,
    "tool_none": 20.0,
    "enum_order": 25.0,
}

MIXTURES: dict[str, dict[str, float]] = {
    "broad": TOKEN_SHARES,
    "last": {kind: weight / sum(_LAST.values()) for kind, weight in _LAST.items()},
}
"""The mixtures by name: `broad` for the long stages, `last` for the short one that corrects tools and enum orders."""

PROMPT_WEIGHTS: dict[str, float] = {"facts_mmlu": 0.2, "lookup_numbers": 0.02} | dict.fromkeys(_NEEDLES | _LISTS, 0.02)
"""Loss weight of the prompt's tokens by generator; 0.05 where not listed."""

ANSWER_WEIGHTS: dict[str, float] = {
    "facts_mmlu": 10.0,
    "facts_binding": 5.0,
    "tool_call": 2.0,
    "tool_none": 2.0,
    "enum_order": 2.0,
    **dict.fromkeys(_NEEDLES, 4.0),
    **dict.fromkeys(_LISTS, 8.0),
    **dict.fromkeys(_PROSE, 0.3),
}
"""Loss weight of the answer's tokens; 1 where not listed. Short answers after long prompts weigh more."""
