"""Seeded generators of canary examples: each maps a `random.Random` to one conversation and its one right answer.

Further parameters of a generator, all with defaults, are its settings, which a specification may choose.
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
