"""Seeded generators of canary examples: each maps a `random.Random` to one conversation and its one right answer.

Further parameters of a generator, all with defaults, are its settings, which a specification may choose.
"""

from collections.abc import Callable

from q36eval.canaries.generators.copy_references import copy_code, copy_references
from q36eval.canaries.generators.copying import copy_exact
from q36eval.canaries.generators.discount import (
    discount_compare,
    discount_three_shops,
    discount_threshold,
    discount_two_step,
)
from q36eval.canaries.generators.enum_long import enum_long, enum_order_long
from q36eval.canaries.generators.enums import enum_order, enum_select
from q36eval.canaries.generators.free_form import (
    discount_after_context,
    instruction_order,
    stability,
    stability_long_context,
)
from q36eval.canaries.generators.json_extract import json_flat, json_nested
from q36eval.canaries.generators.json_types import json_in_prose, json_types
from q36eval.canaries.generators.recall import recall
from q36eval.canaries.generators.tool_calls import tool_call, tool_none
from q36eval.canaries.generators.tool_turns import tool_arguments, tool_follow_up, tool_parallel, tool_results
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
