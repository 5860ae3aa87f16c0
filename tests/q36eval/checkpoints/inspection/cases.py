"""Every case of damage that an inspection is held to: what is wrong, with which checkpoint, and which finding names it.

`python -m tests.q36eval.checkpoints.inspection.cases` prints the list of kinds, `make pages` writes it to a file. A few
cases of every kind and every format run in the quick profile, the others in the long one.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import contradictions, damage, damaged_scales, damaged_tensors, unseen
from .damaged_hybrids import BESIDE, CONFIGURATION, FILES, FUSED_EXPERTS, QUANTIZED, UNQUANTIZED, Entry
from .damaged_parts import EXPERT, TWIN, on
from .kinds import KINDS, OTHERS, Kind, formats_of

Damage = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """A damage to a copy of a checkpoint: a branch of the sandbox, or one of `tiny.write`.

    `rules` are all blocking rules that name the subject; with `at_least` there may be others. Without a subject the
    damage returns it.
    """

    group: str
    what: str
    checkpoint: str
    damage: Damage
    rules: frozenset[str]
    subject: str | None = None
    at_least: bool = False
    quick: bool = True

    @property
    def id(self) -> str:
        """Such as `ct-nvfp4: two experts exchanged`."""
        return f"{self.checkpoint}: {self.what}"


SANDBOX: list[tuple[str, str, str]] = [
    ("main", "truncated", "unreadable-file"),
    ("main", "flipped_header_byte", "unreadable-file"),
    ("main", "overlapping_offsets", "unreadable-file"),
    ("main", "malformed_pattern", "quantization-not-read"),
    ("main", "wrong_shard", "index"),
    ("main", "stray_file", "stray-file"),
    ("main", "stored_twice", "stored-twice"),
    ("main", "global_scale_off_by_two", "beyond-scheme error-outlier"),
    ("main", "global_scale_off_by_half", "beyond-scheme error-outlier"),
    ("main", "zeroed_expert_scales", "zero-scale"),
    ("main", "one_zeroed_group", "zero-scale"),
    ("main", "swapped_experts", "beyond-scheme error-outlier"),
    ("main", "uniform_poison", "beyond-scheme"),
    ("main", "nan_in_bf16", "beyond-scheme non-finite unquantized-differs"),
    ("main", "nan_in_what_is_left_out", "non-finite"),
    ("main", "short_head", "shape"),
    ("main", "exchanged_tokens", "tokenizer-differs"),
    ("main", "token_without_embedding", "tokenizer-differs vocabulary"),
    ("main", "missing_chat_template", "chat-template-missing"),
    ("main", "other_chat_template", "chat-template-differs"),
    ("main", "other_generation_config", "generation-config-differs"),
    ("main", "no_architectures", "architecture"),
    ("main", "other_top_k", "computation-differs"),
    ("main", "top_k_by_default", "computation-differs"),
    ("main", "other_layer_types", "layer-types"),
    ("main", "head_that_would_be_ignored", "tied-head unexpected-tensor"),
    ("main", "quantized_linear_attention", "beyond-scheme"),
    ("main", "dead_ignore_list", "ignore-list-matches-nothing"),
    ("main", "declared_but_not_stored", "not-as-declared"),
    ("main", "dead_group", "declared-scheme-absent"),
    ("main", "expert_left_out", "expert-left-out"),
    ("main", "other_unquantized_weight", "unquantized-differs"),
    ("fp8-head", "transposed_block_scales", "declared-against-stored undecodable"),
    ("fp8-head", "transposed_block_scales_of_the_same_shape", "beyond-scheme"),
    ("fp8-head", "nan_scale", "non-finite"),
    ("fp8-head", "negative_scale", "negative-scale"),
    ("gptq-int4", "gptq_scale_off_by_two", "beyond-scheme error-outlier"),
    ("gptq-int4", "gptq_other_zero_point", "zero-point"),
    ("gptq-int4", "swapped_experts", "beyond-scheme error-outlier"),
    ("gptq-int4", "head_declared_as_gptq", "declared-against-stored"),
    ("gptq-int4", "gptq_head", "declared-against-stored"),
    ("gptq-int4", "malformed_rule", "quantization-not-read"),
    ("main", "no_tensors", "empty-file"),
    ("main", "empty_configuration", "empty-file"),
    ("main", "header_in_utf16", "unreadable-file"),
    ("main", "metadata_that_is_no_text", "unreadable-file"),
    ("main", "tensor_twice_in_the_index", "unreadable-file"),
    ("nvfp4-modelopt", "other_algorithm_in_the_own_file", "declared-twice"),
    ("nvfp4-mixed", "other_algorithm_of_a_layer_in_the_own_file", "declared-twice"),
    ("main", "other_compute_dtype", "computation-differs"),
    ("main", "flat_configuration_of_a_nested_model", "architecture"),
    ("fp8-head", "erased_head", "beyond-scheme"),
    ("main", "twice_as_coarse", "beyond-scheme"),
    ("main", "four_times_as_coarse", "beyond-scheme"),
    ("main", "hundred_times_as_coarse", "beyond-scheme"),
    ("main", "one_halved_row", "beyond-scheme"),
    ("main", "eight_halved_rows", "beyond-scheme"),
    ("main", "all_rows_halved", "beyond-scheme"),
    ("gptq-int4", "one_halved_gptq_row", "beyond-scheme"),
    ("gptq-int4", "eight_halved_gptq_rows", "beyond-scheme"),
    ("gptq-int4", "four_dead_gptq_rows", "beyond-scheme"),
    ("gptq-int4", "doubled_gptq_groups", "beyond-scheme"),
    ("gptq-int4", "gptq_row_of_noise", "beyond-scheme"),
    ("main", "no_input_scales", "activation-scale"),
    ("main", "two_input_scales", "activation-scale"),
    ("main", "tiny_input_scales", "activation-scale"),
    ("main", "one_input_scale_far_off", "activation-scale"),
    ("main", "inputs_declared_unquantized", "activation-scale"),
    ("main", "negative_key_scale", "kv-cache-scale"),
    ("main", "zero_key_scale", "kv-cache-scale"),
    ("main", "huge_key_scale", "kv-cache-scale"),
    ("main", "key_scales_for_other_heads", "kv-cache-scale"),
    ("main", "key_scale_of_linear_attention", "kv-cache-scale"),
    ("main", "unknown_kv_cache", "kv-cache"),
    ("main", "global_scale_of_its_own", "fused-global-scales"),
]
"""Branch, function, and every blocking rule that names what was damaged."""
QUICK = {
    "truncated",
    "global_scale_off_by_two",
    "swapped_experts",
    "uniform_poison",
    "other_chat_template",
    "transposed_block_scales_of_the_same_shape",
    "one_halved_row",
    "gptq_row_of_noise",
    "other_algorithm_in_the_own_file",
}
"""Those of the sandbox that run in the quick profile: what tiny checkpoints do not show."""
_FOUND_BY = (damage, damaged_tensors, damaged_scales, contradictions)


def _of_the_sandbox(branch: str, name: str, rules: str) -> Case:
    function = next(getattr(module, name) for module in _FOUND_BY if hasattr(module, name))
    return Case("the sandbox's branches", name.replace("_", " "), branch, function, frozenset(rules.split()),
                quick=name in QUICK)  # fmt: skip


def _of_a_format(number: int, kind: Kind, checkpoint: str, place: int, among: int) -> Case:
    """Two formats of every kind are quick, others for each."""
    rule = kind.instead.get(checkpoint, kind.rule)
    change = on(kind.change, f"{EXPERT}.{kind.projection}", f"{kind.twin or TWIN}.{kind.twin_projection}")
    quick = place in (number % among, (number + among // 2) % among)
    return Case("one quantized weight", kind.what, checkpoint, change, frozenset({rule}), at_least=True, quick=quick)


def _written_here(group: str, entries: list[Entry]) -> list[Case]:
    return [
        Case(group, what, checkpoint, change, frozenset(rules.split()), subject, quick=place % 2 == 0)
        for place, (what, checkpoint, change, subject, rules) in enumerate(entries)
    ]


@dataclass(frozen=True)
class Unseen:
    """What no file can show, on a branch of the sandbox: the damage, and what finds it."""

    what: str
    checkpoint: str
    damage: Damage
    found_by: str


UNSEEN = [
    Unseen("scales of all inputs 20 times too small or too large", "main", unseen.inputs_twenty_times, "KL"),
    Unseen("scales of the KV cache a tenth of what keys and values need", "main", unseen.clipping_cache, "KL"),
    Unseen("one flipped bit of a small FP8 value, which moves it less than rounding moves its neighbours", "ct-mxfp8",
           unseen.small_value, "the hash of the file"),
    Unseen("a multi-token head or vision tower that its card says is quantized, quantized wrongly", "tiny-nvfp4",
           unseen.quantized_head, "nothing here: no probe runs them"),
]  # fmt: skip

CASES = [
    *(_of_the_sandbox(*entry) for entry in SANDBOX),
    *(
        _of_a_format(number, kind, checkpoint, place, len(formats_of(kind)))
        for number, kind in enumerate(KINDS)
        for place, checkpoint in enumerate(formats_of(kind))
    ),
    *(Case("one quantized weight", *entry, at_least=True) for entry in OTHERS),
    *_written_here("tensors that stay unquantized", UNQUANTIZED),
    *_written_here("quantized modules, inputs and KV cache", QUANTIZED),
    *_written_here("what is shipped beside the text model", BESIDE),
    *_written_here("experts stored as one tensor", FUSED_EXPERTS),
    *_written_here("entries of config.json", CONFIGURATION),
    *_written_here("files and their index", FILES),
]


PAGE = """# Damage that an inspection finds

Every case is done to a copy of a checkpoint that is clean, and the blocking finding that the case names must be about
what was damaged (`tests/q36eval/checkpoints/inspection/test_damage.py`); the untouched checkpoints must have none. All
is held against the reference's weights, as `gate` and `inspect` do it: without them only what contradicts itself is
found.

{count:,} cases of {kinds} kinds, over {checkpoints} checkpoints: golden files of the producers (a tiny model quantized
and written by each), three tiny models of both kinds of attention, and branches of the sandbox. {quick} of them run in
every test run, all of them in the long profile.

{tables}

## What files do not tell

Nothing blocks these; what finds them is measured.

| what | what finds it |
|---|---|
{unseen}
"""


def page() -> str:
    """The list of kinds in Markdown."""
    tables, kinds = [], set()
    for group in dict.fromkeys(case.group for case in CASES):
        rows: dict[str, list[Case]] = defaultdict(list)
        for case in CASES:
            if case.group == group:
                rows[case.what].append(case)
        kinds |= {(group, what) for what in rows}
        lines = [f"| {what} | {_found(cases)} | {_where(cases)} | {len(cases)} |" for what, cases in rows.items()]
        count = sum(len(cases) for cases in rows.values())
        head = f"## {group[0].upper()}{group[1:]}\n\n{len(rows)} kinds, {count} cases.\n\n"
        tables.append(head + "| what | finding | done to | cases |\n|---|---|---|---|\n" + "\n".join(lines))
    return PAGE.format(
        count=len(CASES),
        kinds=len(kinds),
        checkpoints=len({case.checkpoint for case in CASES}),
        quick=sum(case.quick for case in CASES),
        tables="\n\n".join(tables),
        unseen="\n".join(f"| {unseen.what} | {unseen.found_by} |" for unseen in UNSEEN),
    )


def _found(cases: list[Case]) -> str:
    return ", ".join(f"`{rule}`" for rule in sorted({rule for case in cases for rule in case.rules}))


def _where(cases: list[Case]) -> str:
    named = list(dict.fromkeys(case.checkpoint for case in cases))
    most = 4
    return ", ".join(named) if len(named) <= most else f"{', '.join(named[:most])} and {len(named) - most} more"


if __name__ == "__main__":
    print(page(), end="")
