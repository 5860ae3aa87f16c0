"""The names of quantization schemes, as inspection finds them and as policies name them."""

import re
from collections.abc import Iterable

JOIN = " + "
"""Between the parts of a mixture."""

_FLOATS = "NVFP4|MXFP4|MXFP8|FP8"
_GGUF = r"Q[2-8]_[01K]|IQ[1-4]_[A-Z]{1,3}"
"""llama.cpp's types by their own names: weights alone."""
_NAME = re.compile(rf"({_FLOATS}|FP8_BLOCK)(_A16|_AINT8|_A({_FLOATS}))?|W[1-8]A(8|16|{_FLOATS})|{_GGUF}")
_OWN_INPUTS = {"NVFP4": "nvfp4", "MXFP4": "mxfp4", "MXFP8": "mxfp8", "FP8": "fp8", "FP8_BLOCK": "fp8"}

FORMS = "NVFP4, MXFP4, MXFP8, FP8, FP8_BLOCK (with _A16 where only the weights are quantized), W4A16, W8A16, W8A8, Q4_K"
"""Examples for messages."""


def scheme_name(weights: str, inputs: str | None) -> str:
    """The name of weights stored as `weights` whose module's inputs are quantized as `inputs` (None: not at all).

    `NVFP4`, `MXFP4`, `MXFP8`, `FP8` and `FP8_BLOCK` stand for inputs quantized alike, any other inputs are said
    (`NVFP4_A16`); integers of n bits are `WnA16`, `WnA8`, `WnAFP8`, after llm-compressor's presets. The size of a group
    is not part of a name.
    """
    if inputs is None and re.fullmatch(_GGUF, weights):
        return weights
    if weights.startswith("INT"):
        return f"W{weights.removeprefix('INT')}A{_input_bits(inputs).removeprefix('INT')}"
    return weights if _OWN_INPUTS.get(weights) == inputs else f"{weights}_A{_input_bits(inputs)}"


def _input_bits(inputs: str | None) -> str:
    if inputs is None:
        return "16"
    return "INT8" if inputs.startswith("int8") else inputs.upper()


def parts_of(name: str) -> frozenset[str]:
    """The parts of a scheme or a mixture of them.

    Raises:
        ValueError: a part is no scheme, or is named twice.
    """
    parts = [part.strip() for part in name.split("+")]
    unknown = [part for part in parts if not _NAME.fullmatch(part)]
    if unknown:
        raise ValueError(f"there is no scheme {unknown[0]!r}; schemes are such as {FORMS}, mixtures such as A{JOIN}B")
    if len(set(parts)) < len(parts):
        raise ValueError(f"the mixture {name!r} names a part twice")
    return frozenset(parts)


def finer_than(one: str, other: str) -> bool:
    """Whether `one` keeps more bits of the weights than `other`, both of them integers with inputs left as they are."""
    bits = [re.fullmatch(r"W([1-8])A16", name) for name in (one, other)]
    return bits[0] is not None and bits[1] is not None and int(bits[0][1]) > int(bits[1][1])


def mixture_name(parts: Iterable[str]) -> str:
    """The name of a mixture, its parts in a fixed order."""
    return JOIN.join(sorted(parts))
