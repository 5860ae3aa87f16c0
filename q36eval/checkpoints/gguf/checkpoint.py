"""A GGUF as a checkpoint: its metadata as a configuration, its tensors under the names of the model's weights."""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from q36eval.checkpoints.gguf.entries import GgufEntry
from q36eval.checkpoints.gguf.files import HeldGguf
from q36eval.checkpoints.gguf.gpt_oss import BLOCKS, with_joined_experts
from q36eval.checkpoints.gguf.header import GgufHeader, GgufTensor
from q36eval.checkpoints.gguf.names import HYBRIDS, NoPlaceError, Sizes, place
from q36eval.checkpoints.gguf.plain_models import (
    PLAIN_MODELS,
    ROPE_FACTORS,
    llama3_scaling,
    place_plain,
    plain_config,
)
from q36eval.checkpoints.gguf.settings import ROPE_SECTIONS, MetadataError, text_config
from q36eval.checkpoints.gguf.types import DECODED, FLOATS, QUANTIZED
from q36eval.checkpoints.header import TensorEntry
from q36eval.checkpoints.open_files import HeldFolder
from q36eval.checkpoints.scheme import Scheme
from q36eval.errors import CorruptCheckpointError, UsageError

FORMAT = "gguf"
SCALED = "NVFP4"
"""The type that may have a scale of the whole weight beside it."""
_NOT_FROM_THE_REFERENCE = (
    "architectures",
    "auto_map",
    "bos_token_id",
    "eos_token_id",
    "model_type",
    "pad_token_id",
    "quantization_config",
    "rope_parameters",
    "rope_scaling",
)
"""What a GGUF says itself or leaves out."""


@dataclass(frozen=True)
class OpenedGguf:
    """The configuration, the tensors by canonical name, the scheme of every quantized module, and what is wrong with
    single tensors: (stored name, sentence)."""

    config: dict[str, Any]
    tensors: dict[str, TensorEntry]
    schemes: dict[str, Scheme]
    faults: list[tuple[str, str]]


def open_gguf(held: HeldGguf) -> OpenedGguf:
    """Everything but the numbers.

    Raises:
        UsageError: another architecture or type, or no text model at all.
        CorruptCheckpointError: a header cannot be read, files do not belong together, or the metadata make no model.
    """
    headers = held.headers
    if not headers:
        raise UsageError("gguf-without-text-model", f"{held.path} holds no model: its only GGUF is a vision tower.")
    _check_kind(headers[0])
    _check_parts(headers)
    stored: dict[str, tuple[GgufHeader, GgufTensor]] = {}
    for header in headers:
        for name, tensor in header.tensors.items():
            if name in stored:
                both = f"{stored[name][0].path} and {header.path}"
                raise CorruptCheckpointError("tensor-duplicate", f"tensor {name!r} is stored in both {both}.")
            stored[name] = (header, tensor)
    config = _config(held, headers[0], stored)
    place_of = _placing(headers[0], config)
    tensors: dict[str, TensorEntry] = {}
    faults: list[tuple[str, str]] = []
    for header, tensor in stored.values():
        kind = tensor.type.name
        if kind not in DECODED:
            raise UsageError(
                "format-unsupported",
                f"{header.path}: {tensor.name} is stored as {kind}, which is not decoded; known: {', '.join(DECODED)}.",
            )
        entry = GgufEntry(tensor.name, header.path, kind, tensor.shape, tensor.begin, tensor.end)
        try:
            _check_scale(tensor.name, stored)
            for name, placed in place_of(entry):
                if name in tensors:
                    raise NoPlaceError(f"it is the same weight as {tensors[name].name!r}")
                if placed.stored_as and kind not in FLOATS:
                    raise NoPlaceError(f"it is stored as {kind}, which no converter does")
                tensors[name] = placed
        except NoPlaceError as error:
            faults.append((tensor.name, f"{header.path}: tensor {tensor.name!r} has no place in this model: {error}."))
    if config["model_type"] == "gpt_oss":
        tensors = with_joined_experts(tensors)
    return OpenedGguf(config, tensors, _schemes(tensors, headers[0].metadata), faults)


def _placing(header: GgufHeader, config: Mapping[str, Any]) -> Callable[[GgufEntry], Iterator[tuple[str, GgufEntry]]]:
    """How a tensor of that architecture is placed."""
    kind = header.metadata["general.architecture"]
    model = PLAIN_MODELS.get(kind)
    if model is not None:
        return lambda entry: place_plain(entry, model, config)
    sizes = Sizes.of(config, header.metadata[f"{kind}.block_count"])
    return lambda entry: place(entry, sizes)


def _check_scale(name: str, stored: Mapping[str, tuple[GgufHeader, GgufTensor]]) -> None:
    """The converter writes a scale of a whole weight for NVFP4 alone (`conversion/base.py`, `_repack_nvfp4`).

    Raises:
        NoPlaceError: the tensor is the scale of another weight, or of none.
    """
    stem, _, part = name.rpartition(".")
    if part == "scale":
        weight = stored.get(f"{stem}.weight")
        if weight is None:
            raise NoPlaceError(f"it is the scale of {stem}.weight, which is missing")
        if weight[1].type.name != SCALED:
            raise NoPlaceError(f"a scale is known beside {SCALED} alone, and {stem}.weight is {weight[1].type.name}")


def _check_kind(header: GgufHeader) -> None:
    architecture, kind = header.metadata.get("general.architecture"), header.metadata.get("general.type", "model")
    if architecture == "clip" or kind == "mmproj":
        raise UsageError(
            "gguf-without-text-model",
            f"{header.path} is a vision tower (mmproj) and no text model: name the model's file.",
        )
    if kind != "model":
        raise UsageError(
            "gguf-without-text-model",
            f"{header.path} is a GGUF of the type {kind!r} and no model: name the model's file.",
        )
    known = (*HYBRIDS, *PLAIN_MODELS)
    if architecture not in known:
        raise UsageError(
            "architecture-unsupported",
            f"{header.path}: architecture {architecture!r} is not supported; supported: {', '.join(known)}.",
        )


def _check_parts(headers: list[GgufHeader]) -> None:
    """All files of a split set, each in its place."""
    first = headers[0]
    declared = first.metadata.get("split.count", 0)
    if declared not in (0, 1) and declared != len(headers):
        raise CorruptCheckpointError(
            "gguf-split-malformed",
            f"{first.path} is one of {declared} files, and its name is not that of a split file "
            f"(…-00001-of-{declared:05d}.gguf)."
            if isinstance(declared, int)
            else f"{first.path}: split.count is not a whole number; download the file again.",
        )
    if len(headers) == 1:
        return
    for number, header in enumerate(headers):
        if (header.metadata.get("split.no"), header.metadata.get("split.count")) != (number, len(headers)):
            raise CorruptCheckpointError(
                "gguf-split-malformed",
                f"{header.path} is not file {number + 1} of {len(headers)}, by its own entries; download it again.",
            )
    wanted, there = first.metadata.get("split.tensors.count"), sum(len(header.tensors) for header in headers)
    if wanted is not None and wanted != there:
        raise CorruptCheckpointError(
            "gguf-split-malformed", f"{first.path} counts {wanted} tensors in all files, and {there} are stored."
        )


def _config(held: HeldGguf, header: GgufHeader, stored: Mapping[str, tuple[GgufHeader, GgufTensor]]) -> dict[str, Any]:
    embeddings = stored["token_embd.weight"][1] if "token_embd.weight" in stored else None
    if embeddings is None or len(embeddings.shape) != 2:
        raise CorruptCheckpointError(
            "tensor-missing", f"{header.path}: token_embd.weight is missing or not a matrix, so this is not a model."
        )
    try:
        model = PLAIN_MODELS.get(header.metadata["general.architecture"])
        if model is not None:
            scaled = _llama3_rope(held, header, *stored[ROPE_FACTORS]) if ROPE_FACTORS in stored else {}
            mine = plain_config(header.metadata, model, embeddings.shape[0], stored.keys(), scaled)
        else:
            mine = text_config(header.metadata, embeddings.shape[0], "output.weight" in stored)
    except MetadataError as error:
        kind = header.metadata["general.architecture"]
        raise CorruptCheckpointError(
            "gguf-malformed", f"{header.path}: of {kind}, {error}; download the file again."
        ) from error
    return mine if held.texts is None else _completed(mine, held.texts)


def _llama3_rope(held: HeldGguf, first: GgufHeader, header: GgufHeader, stored: GgufTensor) -> dict[str, Any]:
    """The scaling that the stored factors of frequencies come from: the reference's, or that of Llama 3.

    Raises:
        MetadataError: it is neither.
    """
    data = bytearray(stored.end - stored.begin)
    held.files[header.path.name].read_into(memoryview(data), stored.begin)
    factors = struct.unpack(f"<{len(data) // 4}f", data)
    theirs = {} if held.texts is None or "config.json" not in held.texts else held.texts.json("config.json")
    given = theirs.get("rope_parameters") or theirs.get("rope_scaling")
    candidates = [given] if isinstance(given, dict) else []
    return llama3_scaling(first.metadata, factors, candidates)


def _completed(mine: dict[str, Any], texts: HeldFolder) -> dict[str, Any]:
    """With the reference's entries for what no GGUF has a word for."""
    if "config.json" not in texts:
        return mine
    config = texts.json("config.json")
    theirs = config.get("text_config") or config
    if not isinstance(theirs, dict):
        return mine
    rope = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
    rope = dict(rope) if isinstance(rope, dict) else {}
    own = dict(mine["rope_parameters"])
    if rope.get("mrope_section") is not None:
        own.setdefault("mrope_section", ROPE_SECTIONS)
    own |= {key: rope[key] for key in ("mrope_interleaved",) if key in rope}
    kept = {key: value for key, value in theirs.items() if key not in _NOT_FROM_THE_REFERENCE}
    again = {key: own[key] for key in ("rope_theta", "partial_rotary_factor") if key in theirs and key in own}
    return kept | mine | again | {"rope_parameters": own}


def _schemes(tensors: Mapping[str, TensorEntry], metadata: Mapping[str, Any]) -> dict[str, Scheme]:
    """Of every module that is stored in blocks."""
    importance = any(key.startswith("quantize.imatrix.") for key in metadata)
    of_all: tuple[tuple[str, Any], ...] = (("importance", True),) if importance else ()
    schemes: dict[str, Scheme] = {}
    for name, entry in tensors.items():
        if name.endswith(".weight") and entry.dtype in QUANTIZED:
            heads = entry.column_heads if isinstance(entry, GgufEntry) else None
            settings = (("type", entry.dtype), *of_all, *(() if heads is None else (("column_heads", heads),)))
            schemes[name.removesuffix(".weight")] = Scheme(FORMAT, settings=settings)
        elif name.endswith(BLOCKS):
            schemes[name.removesuffix(BLOCKS)] = Scheme("mxfp4")
    return schemes
