"""The training mixture: share of the training tokens by generator, and the loss weight of each generator's prompts."""

_CHAT = {
    "discount_compare": 6.0,
    "discount_two_step": 5.0,
    "discount_three_shops": 5.0,
    "discount_threshold": 5.0,
    "json_flat": 3.0,
    "json_nested": 6.0,
    "tool_call": 7.0,
    "tool_none": 4.0,
    "enum_select": 2.0,
    "enum_order": 5.0,
    "copy_exact": 4.0,
}
_FACTS = {"facts_statement": 2.0, "facts_mmlu": 8.0}
_RULER = {
    "ruler_niah_single_1": 0.7,
    "ruler_niah_single_2": 0.8,
    "ruler_niah_single_3": 1.2,
    "ruler_niah_multikey_1": 1.5,
    "ruler_niah_multikey_2": 2.0,
    "ruler_niah_multikey_3": 2.0,
    "ruler_niah_multivalue": 2.0,
    "ruler_niah_multiquery": 2.5,
    "ruler_vt": 3.0,
    "ruler_cwe": 2.0,
    "ruler_fwe": 2.0,
    "ruler_qa": 2.0,
}
_PROSE = {
    "prose_czech": 4.0,
    "prose_czech_legal": 2.0,
    "prose_english": 4.0,
    "prose_code": 3.0,
    "prose_mathematics": 3.0,
    "prose_json": 3.0,
}
_RAW = _CHAT | _FACTS | _RULER | _PROSE

TOKEN_SHARES: dict[str, float] = {kind: weight / sum(_RAW.values()) for kind, weight in _RAW.items()}
"""Share of the training tokens by generator; sums to 1."""

PROMPT_WEIGHTS: dict[str, float] = {"facts_mmlu": 0.3} | dict.fromkeys(_RULER, 0.03)
"""Loss weight of the prompt's tokens by generator; 0.1 where not listed, answers always weigh 1."""
