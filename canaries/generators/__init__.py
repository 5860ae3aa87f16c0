"""Seeded generators of canary examples: each maps a `random.Random` to one conversation and its one right answer."""

from collections.abc import Callable

from canaries.generators.copying import copy_exact
from canaries.generators.discount import discount_compare, discount_three_shops, discount_threshold, discount_two_step
from canaries.generators.enums import enum_order, enum_select
from canaries.generators.json_extract import json_flat, json_nested
from canaries.generators.tool_calls import tool_call, tool_none
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
    )
}
"""Every generator by name."""

__all__ = ["GENERATORS"]
