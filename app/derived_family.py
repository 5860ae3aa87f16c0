"""A family derived from its reference: from the checkpoint's configuration, and from its chat template by rendering."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from q36eval.app.names import shipped_families
from q36eval.config import Branch, Family, Paths, Source
from q36eval.errors import Q36Error

FLOOR_DOCUMENTS = 4
"""The number of documents for the noise floor: each of its perturbations costs as much as the branch, and the margins
of `standard` are a hundred times as wide."""
REFERENCE = "reference"
"""The one branch of a derived family."""
STANDARD = "standard"
"""The suite and the policy of a derived family."""
CONTEXT_LENGTH = 4096
"""For a model without a limit."""
LONGEST = 2**31
"""Tokenizers without a limit have an absurdly large one."""
_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")


class DerivedFamily(Family):
    """A family that no file describes."""

    same_base: str = ""
    """The declared family with the same base model, whose skills and budgets are used."""

    def lines(self) -> Iterator[str]:
        """For people: what was derived, in two lines."""
        source, classes = self.branches[REFERENCE].source, ", ".join(self.architectures) or "unknown architecture"
        shared = f", skills and budgets of {self.same_base}" if self.same_base else ""
        yield f"family derived from {source}: {classes}, context {self.context_length:,} tokens{shared}"
        if not self.template.present:
            trouble = self.template.trouble
            yield f"chat template: {f'cannot be used, {trouble}' if trouble else 'none'}"
            return
        tools = self.tool_format or ("calls in a format that is not parsed" if self.template.tools else "not written")
        system = "yes" if self.template.system else "no"
        yield f"chat template: tools {tools}; system role {system}; reasoning {_REASONING[self.template.thinking]}"


_REASONING = {"switch": "can be switched", "always": "always on", "never": "without a switch"}


def derive_family(folder: Path, paths: Paths, name: str = "", repository: str | None = None) -> DerivedFamily:
    """The family of a reference that no file declares.

    Args:
        folder: the reference's checkpoint folder or GGUF.
        paths: where declared families are.
        name: its name; by default that of its repository or folder.
        repository: its repository, if it came from the Hub.

    Raises:
        EngineError: the process that renders chat templates was ended by something else.
    """
    from q36eval.chat.template_abilities import abilities_of

    config = _readable(folder)
    named, abilities = config.get("architectures"), abilities_of(folder)
    architectures = tuple(each for each in named if isinstance(each, str)) if isinstance(named, list) else ()
    length = context_of(folder)
    same = _same_base(repository, config, architectures, paths)
    known: dict[str, Any] = {} if same is None else {"skills": same.skills, "same_base": same.name}
    if same is not None and same.answers.largest < length:
        known["answers"] = same.answers
    return undeclared(
        name or (repository or folder.name).rpartition("/")[2],
        repository or name or folder.name,
        str(folder),
        architectures=architectures,
        context_length=length,
        tool_format=abilities.tool_format,
        template=abilities.template,
        **known,
    )


def undeclared(name: str, base_model: str, reference: str, **known: Any) -> DerivedFamily:
    """A family that no file declares, with what is known of it; `reference` is a path."""
    fields = {
        "name": name,
        "base_model": base_model,
        "architectures": (),
        "context_length": CONTEXT_LENGTH,
        "reference": REFERENCE,
        "suite": STANDARD,
        "policy": STANDARD,
        "branches": {REFERENCE: Branch(source=Source(path=reference), description="The reference.", scheme="")},
    }
    return DerivedFamily.model_validate(fields | known)


def config_of(folder: Path) -> dict[str, Any]:
    """config.json, or a GGUF's configuration in its words.

    Raises:
        Q36Error: it cannot be read.
    """
    from q36eval.checkpoints.gguf.files import is_gguf
    from q36eval.checkpoints.reader import open_checkpoint, read_json

    config: dict[str, Any] = open_checkpoint(folder).config if is_gguf(folder) else read_json(folder / "config.json")
    return config


def _readable(folder: Path) -> dict[str, Any]:
    try:
        return config_of(folder)
    except Q36Error:  # reported where it is inspected or loaded
        return {}


def context_of(folder: Path) -> int:
    """Tokens that a checkpoint's model attends to, see `context_length`."""
    config = _readable(folder)
    text = config.get("text_config")
    return context_length(text if isinstance(text, dict) else config, folder)


def context_length(settings: Mapping[str, Any], folder: Path) -> int:
    """Tokens that a model attends to: its positions, extended by YaRN; else what its tokenizer names."""
    named = next((length for name in _LENGTHS if (length := _tokens(settings.get(name)))), None)
    if named is None:
        try:
            from q36eval.checkpoints.reader import read_json

            named = _tokens(read_json(folder / "tokenizer_config.json").get("model_max_length"))
        except Q36Error:
            named = None
    ropes = [settings.get("rope_scaling"), settings.get("rope_parameters")]
    return max([named or CONTEXT_LENGTH, *(_extended(rope, named) for rope in ropes if isinstance(rope, Mapping))])


def _extended(rope: Mapping[str, Any], named: int | None) -> int:
    factor, original = rope.get("factor"), _tokens(rope.get("original_max_position_embeddings")) or named
    is_yarn = "yarn" in (rope.get("rope_type"), rope.get("type"))
    if not is_yarn or not isinstance(factor, int | float) or original is None:
        return 0
    return _tokens(round(factor * original) if 1 <= factor < LONGEST else 0) or 0


def _tokens(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < LONGEST else None


def _same_base(
    repository: str | None, config: Mapping[str, Any], architectures: tuple[str, ...], paths: Paths
) -> Family | None:
    """The declared family with that base model: by the repository, or by what the configuration was loaded from."""
    loaded_from = config.get("_name_or_path")
    for family in shipped_families(paths):
        if family.base_model == repository:
            return family
        if family.base_model == loaded_from and {*architectures} & {*family.architectures}:
            return family
    return None
