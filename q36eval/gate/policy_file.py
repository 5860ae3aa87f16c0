"""Reads a policy file with the policies it extends, and describes every error in one sentence.

`inherit` applies a file's changes to the policy it extends: criteria are changed field by field, or dropped. Reading
touches files, and no module that judges imports this one. A part of a file has the fields of its model in `policy`,
with the same bounds, and only its name is required; every unknown key is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, create_model
from pydantic_core import ErrorDetails

from q36eval.config.paths import Paths
from q36eval.errors import UsageError
from q36eval.files import YamlProblem, parse_yaml, real_path
from q36eval.gate.policy import (
    PAIRED_KINDS,
    Criterion,
    Informative,
    Margin,
    Policy,
    PolicyHead,
    PolicyModel,
    SchemeFigure,
    stricter,
)
from q36eval.schemes import mixture_name, parts_of

FILE_ENDINGS = (".yaml", ".yml")


def _part(model: type[BaseModel], doc: str, name: str | None = None, **parts: Any) -> Any:
    """The model with every field but `name` optional; `parts` are the fields whose values are themselves parts."""
    fields: dict[str, Any] = {}
    for key, known in model.model_fields.items():
        kind = parts.get(key, known.annotation)
        for bound in () if key in parts else known.metadata:
            kind = Annotated[kind, bound]
        fields[key] = kind, Field(default=... if key == name else None, description=known.description)
    return create_model(f"{model.__name__}Part", __base__=PolicyModel, __doc__=doc, **fields)


SchemePart = _part(
    SchemeFigure,
    "The figure that is accepted for one quantization scheme; of an inherited one only what changes.",
    "scheme",
)
MarginPart = _part(
    Margin,
    "How much may be lost, and where that figure comes from.",
    schemes=tuple[SchemePart, ...],  # type: ignore[valid-type]
)
InformativePart = _part(
    Informative,
    "What the reference must be able to do, for a comparison of answers that are right or wrong to be evidence.",
)
CriterionPart = _part(
    Criterion,
    "One rule over one measurement; of an inherited criterion only what changes.",
    "id",
    margin=MarginPart,
    informative=InformativePart | None,
)


class PolicyFile(PolicyHead):
    """A policy file of q36eval: which measurements decide about a release, by which margin, for which lane."""

    extends: str | None = Field(
        default=None,
        min_length=1,
        description="A shipped policy by its name, or a policy file (.yaml) relative to this one: its criteria are "
        "inherited, and changed by what this file says of them.",
    )
    drop: tuple[str, ...] = Field(default=(), description="Ids of inherited criteria that are not judged.")
    criteria: tuple[CriterionPart, ...] = ()  # type: ignore[valid-type]


class _PolicyError(Exception):
    """The errors of a policy, one sentence each."""

    def __init__(self, *sentences: str) -> None:
        super().__init__(*sentences)
        self.sentences = sentences


def read_policy(path: Path, shipped: Path | None = None) -> Policy:
    """The policy in `path` with everything it inherits. `shipped` is the folder of the policies referred to by name.

    Raises:
        UsageError: a file is missing, is not YAML, or is not a valid policy.
    """
    try:
        return _resolved(path, shipped or Paths.default().policies, ())
    except _PolicyError as error:
        raise UsageError("policy-invalid", error.sentences[0]) from error


def policy_problems(path: Path, shipped: Path | None = None) -> tuple[str, ...]:
    """Every error in a policy file, one sentence each; if it extends a policy, that policy's errors come first."""
    try:
        _resolved(path, shipped or Paths.default().policies, ())
    except _PolicyError as error:
        return error.sentences
    return ()


def _resolved(path: Path, shipped: Path, below: tuple[Path, ...]) -> Policy:
    place = real_path(path)
    chain = (*below, place)
    if place in below:
        names = " -> ".join(file.name for file in chain[chain.index(place) :])
        raise _PolicyError(f"policy {path}: policies extend each other in a circle: {names}.")
    document = _document(path)
    try:
        file = PolicyFile.model_validate(document)
    except ValidationError as error:
        raise _PolicyError(*(f"policy {path}: {_problem(each)}." for each in error.errors())) from error
    base = None
    if file.extends is not None:
        base = _resolved(_parent(path, file.extends, shipped), shipped, chain)
    inherited = inherit(base, file.model_dump(mode="json", exclude_unset=True))
    if inherited.problems:
        raise _PolicyError(*(f"policy {path}: {problem}." for problem in inherited.problems))
    try:
        return Policy.model_validate(inherited.document)
    except ValidationError as error:
        problems = [_problem(each, inherited.places) for each in error.errors()]
        raise _PolicyError(*(f"policy {path}: {problem}." for problem in problems)) from error


def _parent(path: Path, extends: str, shipped: Path) -> Path:
    if extends.endswith(FILE_ENDINGS):
        parent = path.parent / extends
        if not parent.is_file():
            raise _PolicyError(f"policy {path}: extends: there is no file {parent}.")
        return parent
    parent = shipped / f"{extends}.yaml"
    if "/" in extends or not parent.is_file():
        known = ", ".join(shipped_names(shipped))
        raise _PolicyError(
            f"policy {path}: extends: there is no policy {extends!r}; known policies: {known}, or name a .yaml file."
        )
    return parent


def shipped_names(shipped: Path) -> tuple[str, ...]:
    """The names of the policies in that folder."""
    return tuple(sorted(file.stem for file in shipped.glob("*.yaml")))


def _document(path: Path) -> dict[Any, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or type(error).__name__
        raise _PolicyError(f"policy file {path} cannot be read ({said}).") from error
    try:
        document = parse_yaml(text)
    except YamlProblem as error:
        raise _PolicyError(f"policy {path} is not valid YAML: {error}.") from error
    if not isinstance(document, dict):
        raise _PolicyError(f"policy {path} must be a mapping with the keys {', '.join(PolicyFile.model_fields)}.")
    return document


def _problem(error: ErrorDetails, places: Sequence[str] = ()) -> str:
    """The error as a sentence; `places` are the positions of the validated criteria in the files."""
    location = error["loc"]
    where = _where(location, places)
    if error["type"] == "extra_forbidden":
        return f"unknown key {where!r}; valid keys there are {_keys_at(location[:-1])}"
    if error["type"] == "missing":
        return f"key {where!r} is missing; the keys there are {_keys_at(location[:-1])}"
    if error["type"] in ("float_type", "int_type"):
        return f"{where}: {_no_number(error['input'])}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{where}: {message[:1].lower()}{message[1:]}" if where else message


def _no_number(given: object) -> str:
    wanted = f"it must be a number, not {str(given).lower() if isinstance(given, bool) else repr(given)}"
    spelt = isinstance(given, str) and "e" in given.lower() and "." not in given
    return f"{wanted} (YAML reads 1e-3 as text; write 1.0e-3)" if spelt else wanted


def _where(location: tuple[int | str, ...], places: Sequence[str]) -> str:
    match location:
        case ("criteria", int(number), *rest) if number < len(places):
            return _dotted(tuple(rest), places[number])
    return _dotted(location)


def _dotted(location: tuple[int | str, ...], text: str = "") -> str:
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _keys_at(location: tuple[int | str, ...]) -> str:
    level: type[Any] = PolicyFile
    if location[:1] == ("criteria",):
        below = {"schemes": SchemePart, "margin": MarginPart, "informative": InformativePart}
        level = next((part for key, part in below.items() if key in location), CriterionPart)
    return ", ".join(level.model_fields)


THRESHOLD_OF = ("beyond_margins", "of")
"""One of two ways to define a share's threshold; the other is `beyond`, and a policy uses one."""
DECIDES = ("kind", "value", "against", "beyond", "beyond_margins", "of")
"""The fields of a margin that its source justifies."""


@dataclass(frozen=True)
class Inherited:
    """A merged document for `Policy` to read; `places` are the positions of its criteria in the files.

    `problems` are errors that no single field shows, one clause each.
    """

    document: dict[str, Any]
    places: tuple[str, ...]
    problems: tuple[str, ...] = field(default=())


def inherit(base: Policy | None, given: Mapping[str, Any]) -> Inherited:
    """The result of applying the file `given` (itself valid) to the policy it extends; `base` is None without one.

    Inherited criteria keep their positions; new ones follow in the file's order.
    """
    criteria: Sequence[Mapping[str, Any]] = given.get("criteria", ())
    drop: Sequence[str] = given.get("drop", ())
    inherited = {} if base is None else {c.id: c.model_dump(mode="json") for c in base.criteria}
    problems = [*_dropping(base, drop, criteria)]
    if base is not None and (name := given["name"]) in (*base.lineage, base.name):
        problems.append(f"name: {name!r} is the name of a policy that it extends, which reports could not tell apart")
    names = [criterion["id"] for criterion in criteria]
    for number, criterion in enumerate(criteria):
        if criterion["id"] in names[:number]:  # the second change would silently win
            problems.append(f"criteria[{number}].id: criterion id {criterion['id']!r} is used more than once")
        margin = criterion.get("margin", {})
        if "beyond" in margin and any(key in margin for key in THRESHOLD_OF):
            one = "the threshold is beyond, or beyond_margins and of; name one of the two"
            problems.append(f"criteria[{number}].margin: {one}")
    merged: list[tuple[str, dict[str, Any]]] = [
        (f"criterion {name!r} of {'' if base is None else base.name}", fields)
        for name, fields in inherited.items()
        if name not in drop
    ]
    position = {fields["id"]: index for index, (_, fields) in enumerate(merged)}
    for number, change in enumerate(criteria):
        place = f"criteria[{number}]"
        index = position.get(change["id"])
        if index is None:
            merged.append((place, dict(change)))
        else:
            problems += _unsourced(place, merged[index][1], change)
            merged[index] = (place, _changed(merged[index][1], change))
    own = ("name", "description", "purpose", "alpha", "required", "max_attempts")
    document = {key: value for key, value in given.items() if key in own}
    if base is not None:
        kept = {name: getattr(base, name) for name in ("alpha", "purpose", "required", "max_attempts")}
        document = {**kept, "lineage": (*base.lineage, base.name), **document}
    document["criteria"] = [fields for _, fields in merged]
    return Inherited(document, tuple(place for place, _ in merged), tuple(problems))


def _changed(inherited: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    changed = change.get("margin", {})
    replaced = THRESHOLD_OF if "beyond" in changed else ("beyond",) if "beyond_margins" in changed else ()
    margin = {**{key: value for key, value in inherited["margin"].items() if key not in replaced}, **changed}
    if inherited["margin"].get("schemes") or "schemes" in changed:
        # a lower ceiling replaces figures that allow more; a different kind of margin replaces all figures
        figures, kind = inherited["margin"].get("schemes", ()), margin["kind"]
        same_kind = kind == inherited["margin"]["kind"]
        inside = [each for each in figures if same_kind and not stricter(kind, margin["value"], each["value"])]
        margin["schemes"] = _merged_schemes(inside, changed.get("schemes", ()))
    informative = change.get("informative")
    if margin["kind"] in PAIRED_KINDS:
        informative = {**(inherited["informative"] or {}), **(informative or {})}
    kept = dict(inherited)
    if {"probe", "metric", "slice"} & change.keys():
        kept.pop("title", None)  # the title described the earlier figure
    return {**kept, **change, "margin": margin, "informative": informative}


def _merged_schemes(
    inherited: Sequence[Mapping[str, Any]], changes: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Figures change scheme by scheme, as criteria change by id; duplicates stay, so that validation refuses them."""
    merged = [dict(figure) for figure in inherited]
    own = [figure["scheme"] for figure in merged]
    for change in changes:
        name = _normal(change["scheme"])
        if name in own:
            merged[own.index(name)] |= {**change, "scheme": name}
            own[own.index(name)] = ""  # a second entry of that name is a duplicate and refused
        else:
            merged.append(dict(change))
    return merged


def _normal(scheme: str) -> str:
    """The name in the form that policies store; an invalid name is unchanged, for `Policy` to refuse."""
    try:
        return mixture_name(parts_of(scheme))
    except ValueError:
        return scheme


def _unsourced(place: str, inherited: Mapping[str, Any], change: Mapping[str, Any]) -> Iterator[str]:
    """A changed figure needs a new source."""
    old, new = inherited["margin"], change.get("margin", {})
    differing = [name for name in DECIDES if name in new and new[name] != old.get(name)]
    if differing and new.get("source", old["source"]) == old["source"]:
        words = ", ".join(f"{name} {old.get(name)} to {new[name]}" for name in differing)
        yield (
            f"{place}.margin: criterion {change['id']!r} changes its inherited {words}, so it must bring a source of "
            f"its own"
        )
    yield from _unsourced_schemes(place, inherited, change)


def _unsourced_schemes(place: str, inherited: Mapping[str, Any], change: Mapping[str, Any]) -> Iterator[str]:
    """The same for a scheme's figure."""
    known = {figure["scheme"]: figure for figure in inherited["margin"].get("schemes", ())}
    for number, new in enumerate(change.get("margin", {}).get("schemes", ())):
        old = known.get(_normal(new["scheme"]))
        if old is None or new.get("value", old["value"]) == old["value"]:
            continue
        if new.get("source", old["source"]) == old["source"]:
            yield (
                f"{place}.margin.schemes[{number}]: criterion {change['id']!r} changes its inherited figure for "
                f"{old['scheme']} from {old['value']} to {new['value']}, so it needs its own source"
            )


def _dropping(base: Policy | None, drop: Sequence[str], criteria: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if drop and base is None:
        yield "drop: takes inherited criteria away, and this policy extends none"
        return
    known = [] if base is None else [criterion.id for criterion in base.criteria]
    for number, name in enumerate(drop):
        if base is not None and name not in known:
            yield f"drop[{number}]: {base.name} has no criterion {name!r}; it has {', '.join(known)}"
        elif name in {criterion["id"] for criterion in criteria}:
            yield f"drop[{number}]: criterion {name!r} is both dropped and defined; remove one of the two"
