"""Seeded generators of canary examples: each maps a `random.Random` to one conversation and its one right answer.

| file | content |
|---|---|
| `discount` | price comparisons in Czech |
| `json_objects` | extraction into JSON, types that are easily lost, JSON in prose |
| `tools`, `tool_calls` | the offered tools; requests for one, or for none |
| `enums`, `copying` | choosing and ordering; exact copies |
| `recall`, `free_form` | records far back in a long context; free answers and answers under constraints |
| `standard/` | the English set of the suite `standard`, with its own words and tools |
| `words` | what is in `words.yaml`: wordings, tools, Czech names with their forms; numbers |

A generator imports `words`, other generators' material and `q36eval.examples`, never a check, an engine or torch. The
sandbox trains on the other side of the same split, so what a seed draws is part of the suite's hash and of the trained
weights: it must not change.

Further parameters of a generator, all with defaults, are its settings, which a specification may choose.

To add a family: write a generator in the file nearest by subject, whose `ChatExample` has under `expected` the values
for its checks, with its words in `words.yaml`; list it in `GENERATORS`, and add `specs/NAME.yaml` with
`family: {generator: …, seed: …}`.
"""

from collections.abc import Callable

from q36eval.canaries.generators import copying, discount, enums, free_form, json_objects, recall, tool_calls
from q36eval.canaries.generators.standard import STANDARD
from q36eval.examples import ChatExample

GENERATORS: dict[str, Callable[..., ChatExample]] = {
    generator.__name__: generator
    for generator in (
        discount.discount_compare,
        discount.discount_two_step,
        discount.discount_three_shops,
        discount.discount_threshold,
        json_objects.json_flat,
        json_objects.json_nested,
        tool_calls.tool_call,
        tool_calls.tool_none,
        enums.enum_select,
        enums.enum_order,
        copying.copy_exact,
        recall.recall,
        free_form.discount_after_context,
        json_objects.json_types,
        json_objects.json_in_prose,
        tool_calls.tool_arguments,
        tool_calls.tool_parallel,
        tool_calls.tool_follow_up,
        tool_calls.tool_results,
        enums.enum_long,
        enums.enum_order_long,
        copying.copy_references,
        copying.copy_code,
        free_form.stability,
        free_form.stability_long_context,
        free_form.instruction_order,
        *STANDARD,
    )
}
"""Every generator by name."""

__all__ = ["GENERATORS"]
