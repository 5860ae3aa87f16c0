"""What a checkpoint's config says of its model: class and empty model, the names of its parts, where stored tensors go.

Everything that depends on an architecture is asked here. transformers knows the architectures: its classes, its mapping
from stored to loaded names, the dtypes that it keeps in float32.
"""

import copy
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from q36eval.checkpoints.reader import Checkpoint
from q36eval.checkpoints.supported_architectures import check_supported
from q36eval.errors import CorruptCheckpointError, UsageError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Where a stored weight goes: all of a parameter, or the rows of one expert in a stacked parameter."""

    parameter: str
    part: tuple[int, slice] | None = None
    """The expert and its rows; None for all of the parameter."""


@dataclass(frozen=True)
class Architecture:
    """The text model of a checkpoint: a transformers config and the causal class that belongs to it."""

    checkpoint: Checkpoint
    config: Any
    model_class: Any

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Architecture":
        """The architecture that a checkpoint's config names, without its quantization.

        Raises:
            UsageError: it is not supported.
            CorruptCheckpointError: transformers cannot read its settings.
        """
        from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

        check_supported(checkpoint)
        settings = {name: value for name, value in checkpoint.config.items() if name not in _NOT_THE_MODEL}
        try:
            kind = CONFIG_MAPPING[settings["model_type"]]
            config = kind.from_dict(kind._decode_special_floats(settings)).get_text_config(decoder=True)
            model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        except Exception as error:  # its own checks raise many kinds
            raise _unreadable(checkpoint, error) from error
        if settings.get("tie_word_embeddings"):
            config.tie_word_embeddings = True
        return cls(checkpoint, config, model_class)

    def empty(self, dtype: torch.dtype) -> Any:
        """The model on the meta device: shapes and dtypes, no memory, no random initialization."""
        config = copy.deepcopy(self.config)
        config.dtype = dtype
        with torch.device("meta"):
            return self.model_class._from_config(config, dtype=dtype).eval()

    @cached_property
    def outline(self) -> "Outline":
        """The parts of the model, from an empty one.

        Raises:
            CorruptCheckpointError: transformers cannot build a model of these settings.
        """
        try:
            return Outline(self.empty(torch.bfloat16))
        except Exception as error:  # whatever sizes that do not fit make torch raise
            raise _unreadable(self.checkpoint, error) from error


def _unreadable(checkpoint: Checkpoint, error: Exception) -> CorruptCheckpointError:
    reason = " ".join(str(error).split())
    return CorruptCheckpointError(
        "config-invalid",
        f"{checkpoint.path}: transformers cannot build the model that config.json describes ({type(error).__name__}: "
        f"{reason}).",
    )


_NOT_THE_MODEL = {"quantization_config", "auto_map", "dtype", "torch_dtype"}


def base_of(model: Any) -> Any:
    """The part of a causal model that gives the final hidden states: the child that holds its input embeddings."""
    embeddings = model.get_input_embeddings()
    return next(child for child in model.children() if any(module is embeddings for module in child.modules()))


def layers_name(model: Any) -> str:
    """The name of a causal model's list of decoder layers."""
    count = model.config.num_hidden_layers
    lists = ((name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList))
    return next(str(name) for name, module in lists if len(module) == count)


class Outline:
    """The names, shapes and dtypes of a model's parts, without its weights.

    `mapped_as` is the model whose mapping from stored to loaded names holds, where that is another: transformers has
    none for a class of ours.
    """

    def __init__(self, model: Any, mapped_as: Any = None) -> None:
        from transformers import core_model_loading as loading
        from transformers.conversion_mapping import get_model_conversion_mapping

        self.model = model
        self._modules: dict[str, nn.Module] = dict(model.named_modules())
        self._stored: dict[str, torch.Tensor] = model.state_dict()
        self.shapes: dict[str, Shape] = {name: tuple(value.shape) for name, value in self._stored.items()}
        """Of every stored parameter and buffer."""
        self.tied: dict[str, str] = dict(getattr(model, "all_tied_weights_keys", None) or {})
        """Parameters that are another one: which."""
        mapping = get_model_conversion_mapping(mapped_as or model)
        self._renamings = [each for each in mapping if isinstance(each, loading.WeightRenaming)]
        self._unique = [each for each in mapping if isinstance(each, loading.WeightConverter)]
        self._converters = {pattern: each for each in self._unique for pattern in each.source_patterns}

    @cached_property
    def head(self) -> str:
        """The module that gives the logits."""
        return self._name_of(self.model.get_output_embeddings())

    @cached_property
    def input_embeddings(self) -> str:
        """The module that embeds tokens."""
        return self._name_of(self.model.get_input_embeddings())

    @cached_property
    def layers(self) -> str:
        """The list of decoder layers."""
        return layers_name(self.model)

    def _name_of(self, module: nn.Module) -> str:
        return next(name for name, each in self._modules.items() if each is module)

    def dtype_of(self, parameter: str, dtype: torch.dtype) -> torch.dtype:
        """The dtype that transformers keeps a parameter in where the model is loaded in `dtype`."""
        from transformers.core_model_loading import build_glob_alternation

        plan = self.model._get_dtype_plan(dtype)
        if plan:
            pattern, glob_of, _ = build_glob_alternation(list(plan))
            if found := pattern.search(parameter):
                kept: torch.dtype = plan[glob_of[str(found.lastgroup)]]
                return kept
        own = self._stored[parameter].dtype
        return dtype if own == self.model.config.dtype else own

    def layer_of(self, parameter: str) -> int | None:
        """The number of the decoder layer that a parameter is in; None for one around the layers."""
        rest = parameter.removeprefix(f"{self.layers}.")
        return None if rest == parameter else int(rest.partition(".")[0])

    def module_type(self, module: str) -> str:
        """The torch class that a recipe's target (`Linear`, `Embedding`) matches; empty for anything else.

        An expert of a stacked parameter, and that parameter, count as the linear layers that they were when they were
        quantized.
        """
        if isinstance(self._modules.get(module), nn.Embedding):
            return "Embedding"
        if len(self.shapes.get(module, ())) == _STACKED:
            return "Linear"
        target, pattern = self._renamed(f"{module}.weight")
        is_stacked = pattern is not None and len(self.shapes.get(target, ())) == _STACKED
        loaded = self._modules.get(target.removesuffix(".weight"))
        return "Linear" if is_stacked or isinstance(loaded, nn.Linear) else ""

    def loaded_name(self, module: str) -> str:
        """What the model calls a module that is stored under that name; of an expert in a stack, that name."""
        target, pattern = self._renamed(f"{module}.weight")
        return module if pattern is not None else target.removesuffix(".weight")

    def places(self, names: Sequence[str]) -> "Places":
        """Where transformers' own mapping puts the rows of each of these weights.

        The mapping runs over row numbers instead of weights: the result tells where each row of each weight belongs,
        without any name of ours. transformers drops what it has no place for and stacks experts in the order of their
        numbers, whichever these are; here nothing is dropped, and each number has to be the expert's own.

        Raises:
            UsageError: the mapping does more than to rename weights and to stack them.
        """
        from transformers import core_model_loading as loading

        groups: dict[str, Any] = {}
        sources: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        unexpected = []
        for number, name in enumerate(names):
            target, pattern = self._renamed(name)
            if target not in self.shapes:
                unexpected.append(name)
                continue
            if target not in groups:
                made = self._converters.get(pattern)
                groups[target] = loading.WeightRenaming(name, target) if made is None else copy.deepcopy(made)
            if pattern is None and sources[target]:
                unexpected.append(name)
                continue
            sources[target][pattern or name].append(name)
            rows = _row_numbers(number, self._source_shape(target, groups[target], pattern))
            groups[target].add_tensor(target, name, pattern or name, rows)
        found = Places({}, unexpected, [])
        for target, group in groups.items():
            if self._stack_faults(target, sources[target], group, found):
                continue
            is_stack = any("*" in pattern for pattern in sources[target])
            info = loading.LoadStateDictInfo(set(), set(), set(), {}, [], set())
            for parameter, value in group.convert(
                target, model=self.model, config=self.model.config, loading_info=info
            ).items():
                rows = value[0] if isinstance(value, list) else value
                found.of.update(_placed(parameter, rows, self.shapes[parameter], names, is_stack))
        filled = {place.parameter for place in found.of.values()}
        found.missing.extend(sorted(self.shapes.keys() - filled - self.tied.keys() - groups.keys()))
        return found

    def _source_shape(self, target: str, group: Any, pattern: str | None) -> Shape:
        """The shape that a weight needs to fill its share of a parameter."""
        shape = self.shapes[target]
        if pattern is None or "*" not in pattern:
            return shape
        return (shape[1] // len(group.source_patterns), *shape[2:])

    def _stack_faults(self, target: str, sources: Mapping[str, Sequence[str]], group: Any, found: "Places") -> bool:
        """Whether experts of a stacked parameter are missing or too many; adds their names to what was found."""
        if not any("*" in pattern for pattern in sources):
            return False
        experts = range(self.shapes[target][0])
        some = next(iter(sources.values()))[0]
        faulty = False
        for pattern in group.source_patterns:
            by_number = {int(_NUMBER.findall(name)[-1]): name for name in sources.get(pattern, ())}
            found.unexpected.extend(name for number, name in by_number.items() if number not in experts)
            like = next(iter(by_number.values()), some)
            start, end = list(_NUMBER.finditer(like))[-1].span()
            found.missing.extend(f"{like[:start]}{n}{like[end:]}" for n in experts if n not in by_number)
            faulty |= by_number.keys() != set(experts)
        return faulty

    def shape_at(self, place: Place) -> Shape:
        """The shape of a weight that goes there."""
        shape = self.shapes[place.parameter]
        if place.part is None:
            return shape
        rows = place.part[1]
        return (rows.stop - rows.start, *shape[2:])

    def is_for(self, name: str, parameter: str) -> bool:
        """Whether a stored weight becomes that parameter, or a part of it."""
        return name == parameter or self._renamed(name)[0] == parameter

    def _renamed(self, name: str) -> tuple[str, str | None]:
        """The parameter that a stored weight belongs to, and the pattern of the conversion where there is one."""
        from transformers import core_model_loading as loading

        prefix = self.model.base_model_prefix
        target, pattern = loading.rename_source_key(name, self._renamings, self._unique, prefix, self.shapes)
        if target not in self.shapes and name in self.shapes:
            return name, None
        return target, pattern


@dataclass(frozen=True)
class Places:
    """Where stored weights go, by their names; which have no place; which parameters, or experts, have no weight."""

    of: dict[str, Place]
    unexpected: list[str]
    missing: list[str]


_STACKED = 3
"""Dimensions of a parameter that holds the weights of all experts: [experts, rows, columns]."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def _placed(parameter: str, rows: torch.Tensor, shape: Shape, names: Sequence[str], is_stack: bool) -> dict[str, Place]:
    """The place of each source, from the row numbers [..., rows, 1] that the mapping put into a parameter.

    Raises:
        UsageError: rows are not those of whole weights in their order.
    """
    flat = rows.reshape(-1)
    numbers, own = flat >> _ROW_BITS, flat & ((1 << _ROW_BITS) - 1)
    begins = [0, *(torch.nonzero(numbers[1:] != numbers[:-1]).flatten() + 1).tolist()]
    sources = numbers[begins].tolist()
    if not is_stack and len(sources) == 1 and torch.equal(own, torch.arange(len(own))):
        return {names[sources[0]]: Place(parameter)}
    ends = [*begins[1:], len(flat)]
    lengths = torch.tensor(ends) - torch.tensor(begins)
    counted = torch.arange(len(flat)) - torch.repeat_interleave(torch.tensor(begins), lengths)
    height = shape[-2]
    within = all(begin // height == (end - 1) // height for begin, end in zip(begins, ends, strict=True))
    if len(shape) != _STACKED or len(set(sources)) != len(sources) or not torch.equal(own, counted) or not within:
        raise UsageError("architecture-unsupported", f"The weights of {parameter} are stored in an unknown order.")
    return {
        names[source]: Place(parameter, (begin // height, slice(begin % height, begin % height + end - begin)))
        for source, begin, end in zip(sources, begins, ends, strict=True)
    }


_ROW_BITS = 40


def _row_numbers(number: int, shape: Shape) -> torch.Tensor:
    """For every row (or value, of a vector) of weight `number`: the number and the row's own, as [..., rows, 1]."""
    leading = shape[:-1] if len(shape) > 1 else shape
    rows = (number << _ROW_BITS) + torch.arange(int(torch.tensor(leading).prod()) if leading else 1)
    return rows.view(*leading, 1) if len(shape) > 1 else rows.view(shape)
