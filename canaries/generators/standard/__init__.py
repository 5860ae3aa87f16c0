"""Generators of the suite `standard`: English, short, with answers that small models can give too.

| file | what it draws |
|---|---|
| `drawing` | values of slots (names, dates, codes), and texts with slots |
| `records` | JSON objects, flat, nested and typed; a value of a record far back |
| `texts` | a member of a list, an order, a copy, constraints, discounts, short answers |
| `calls` | requests for one of 2 to 64 tools, or for none |

Prompts and tools stand in `words.yaml` and `tools.yaml`. What a seed draws is part of a suite's hash.
"""

from q36eval.canaries.generators.standard.calls import offered_call, offered_none
from q36eval.canaries.generators.standard.records import (
    flat_lines,
    nested_order,
    plain_pairs,
    recalled_values,
    typed_record,
)
from q36eval.canaries.generators.standard.texts import (
    constrained_text,
    copied_line,
    discount_line,
    named_member,
    short_answer,
    stated_order,
)

STANDARD = (
    flat_lines,
    plain_pairs,
    nested_order,
    typed_record,
    named_member,
    stated_order,
    copied_line,
    constrained_text,
    recalled_values,
    discount_line,
    short_answer,
    offered_call,
    offered_none,
)

__all__ = ["STANDARD"]
