"""Seeded generators of canary examples: each maps a `random.Random` to one conversation and its one right answer.

| file | what it draws |
|---|---|
| `discount` | price comparisons in Czech |
| `json_objects` | extraction into JSON, types that are easily lost, JSON in prose |
| `tools`, `tool_calls` | the tools that are offered; requests that call for them, or for none |
| `enums`, `copying` | choosing and ordering; exact copies |
| `recall`, `free_form` | records far back in a long context; free answers and answers under constraints |
| `words` | words, numbers, and Czech names with their forms |

A generator imports `words`, other generators' material and `q36eval.examples`, never a check, an engine or torch. The
sandbox trains on the other side of the same split, so what a seed draws is part of the suite's hash and of the trained
weights: it must not change.

Further parameters of a generator, all with defaults, are its settings, which a specification may choose.

To add a family: write a generator in the file nearest by subject, whose `ChatExample` states under `expected` what its
checks must know, list it in `GENERATORS`, and add `specs/NAME.yaml` with `family: {generator: …, seed: …}`.
"""

from collections.abc import Callable

from q36eval.canaries.generators.copying import copy_code, copy_exact, copy_references
from q36eval.canaries.generators.discount import (
    discount_compare,
    discount_three_shops,
    discount_threshold,
    discount_two_step,
)
from q36eval.canaries.generators.enums import enum_long, enum_order, enum_order_long, enum_select
from q36eval.canaries.generators.free_form import (
    discount_after_context,
    instruction_order,
    stability,
    stability_long_context,
)
from q36eval.canaries.generators.json_objects import json_flat, json_in_prose, json_nested, json_types
from q36eval.canaries.generators.recall import recall
from q36eval.canaries.generators.tool_calls import (
    tool_arguments,
    tool_call,
    tool_follow_up,
    tool_none,
    tool_parallel,
    tool_results,
)
from q36eval.examples import ChatExample

GENERATORS: dict[str, Callable[..., ChatExample]] = {
    generator.__name__: generator
    for generator in (
        discount_compare,
        discount_two_step,
        discount_three_shops,
        discount_threshold,
        json_flat,
        json_nested,
        tool_call,
        tool_none,
        enum_select,
        enum_order,
        copy_exact,
        recall,
        discount_after_context,
        json_types,
        json_in_prose,
        tool_arguments,
        tool_parallel,
        tool_follow_up,
        tool_results,
        enum_long,
        enum_order_long,
        copy_references,
        copy_code,
        stability,
        stability_long_context,
        instruction_order,
    )
}
"""Every generator by name."""

__all__ = ["GENERATORS"]
