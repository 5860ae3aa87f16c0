"""A policy made of another: its criteria are changed field by field, dropped, or narrowed to some lanes. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from q36eval.gate.policy import PAIRED_KINDS, Policy, stricter
from q36eval.schemes import mixture_name, parts_of

THRESHOLD = ("beyond",)
THRESHOLD_OF = ("beyond_margins", "of")
"""The two ways to name the threshold of a share; a policy names one."""
DECIDES = ("kind", "value", "against", "beyond", "beyond_margins", "of")
"""What of a margin its source speaks of."""


@dataclass(frozen=True)
class Inherited:
    """A merged document as `Policy` reads it; `places` say where each of its criteria stands in the files.

    `problems` is what no field shows by itself, one clause each.
    """

    document: dict[str, Any]
    places: tuple[str, ...]
    problems: tuple[str, ...] = field(default=())


def inherit(base: Policy | None, given: Mapping[str, Any]) -> Inherited:
    """What the file `given` (valid by itself) makes of the policy it extends; None where it extends none.

    Inherited criteria keep their place, new ones follow in the file's order.
    """
    criteria: Sequence[Mapping[str, Any]] = given.get("criteria", ())
    drop: Sequence[str] = given.get("drop", ())
    inherited = {} if base is None else {c.id: c.model_dump(mode="json") for c in base.criteria}
    problems = [*_dropping(base, drop, criteria), *_naming(base, given), *_repeating(criteria), *_doubling(criteria)]
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
    lanes = given.get("lanes")
    narrowed = merged if lanes is None else _narrowed(merged, lanes)
    problems += [] if lanes is None else _unjudged(merged, narrowed, lanes)
    own = ("name", "description", "purpose", "alpha", "max_attempts")
    document = {key: value for key, value in given.items() if key in own}
    if base is not None:
        kept = {"alpha": base.alpha, "purpose": base.purpose, "max_attempts": base.max_attempts}
        document = {**kept, "lineage": (*base.lineage, base.name), **document}
    document["criteria"] = [fields for _, fields in narrowed]
    return Inherited(document, tuple(place for place, _ in narrowed), tuple(problems))


def _changed(inherited: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    changed = change.get("margin", {})
    replaced = (*(THRESHOLD_OF if "beyond" in changed else ()), *(THRESHOLD if "beyond_margins" in changed else ()))
    margin = {**{key: value for key, value in inherited["margin"].items() if key not in replaced}, **changed}
    if inherited["margin"].get("schemes") or "schemes" in changed:
        inside = [
            figure for figure in inherited["margin"].get("schemes", ()) if _still_inside(figure, margin, inherited)
        ]
        margin["schemes"] = _merged_schemes(inside, changed.get("schemes", ()))
    informative = change.get("informative")
    if margin["kind"] in PAIRED_KINDS:
        informative = {**(inherited["informative"] or {}), **(informative or {})}
    return {**inherited, **change, "margin": margin, "informative": informative}


def _still_inside(figure: Mapping[str, Any], margin: Mapping[str, Any], inherited: Mapping[str, Any]) -> bool:
    """A lower ceiling takes the place of inherited figures that allow more; another kind of margin that of them all."""
    same_kind = margin["kind"] == inherited["margin"]["kind"]
    return same_kind and not stricter(margin["kind"], margin["value"], figure["value"])


def _merged_schemes(
    inherited: Sequence[Mapping[str, Any]], changes: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Figures change scheme by scheme, as criteria change by their ids; one named twice stays twice, to be refused."""
    merged = [dict(figure) for figure in inherited]
    own = [figure["scheme"] for figure in merged]
    for change in changes:
        name = _normal(change["scheme"])
        if name in own:
            merged[own.index(name)] |= {**change, "scheme": name}
            own[own.index(name)] = ""  # the next of that name is another, and refused
        else:
            merged.append(dict(change))
    return merged


def _normal(scheme: str) -> str:
    """The name as policies keep it; what is none, as it is, for `Policy` to refuse."""
    try:
        return mixture_name(parts_of(scheme))
    except ValueError:
        return scheme


def _unsourced(place: str, inherited: Mapping[str, Any], change: Mapping[str, Any]) -> Iterator[str]:
    """A figure that is another one came from somewhere else."""
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
                f"{old['scheme']} from {old['value']} to {new['value']}, so it must bring a source of its own"
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
            yield f"drop[{number}]: criterion {name!r} is dropped and given anew; do one of the two"


def _repeating(criteria: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Of two changes to one criterion the second would silently stand."""
    names = [criterion["id"] for criterion in criteria]
    for number, name in enumerate(names):
        if name in names[:number]:
            yield f"criteria[{number}].id: criterion id {name!r} is used more than once"


def _doubling(criteria: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Of two thresholds only one would hold."""
    for number, criterion in enumerate(criteria):
        margin = criterion.get("margin", {})
        if any(key in margin for key in THRESHOLD) and any(key in margin for key in THRESHOLD_OF):
            yield f"criteria[{number}].margin: the threshold is beyond, or beyond_margins and of; name one of the two"


def _naming(base: Policy | None, given: Mapping[str, Any]) -> Iterator[str]:
    if base is not None and given["name"] in (*base.lineage, base.name):
        yield f"name: {given['name']!r} is the name of a policy that it extends, which reports could not tell apart"


def _narrowed(merged: Sequence[tuple[str, dict[str, Any]]], lanes: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    kept = [(place, {**fields, "lanes": _common(fields, lanes)}) for place, fields in merged]
    return [(place, fields) for place, fields in kept if fields["lanes"] != []]


def _common(fields: Mapping[str, Any], lanes: Sequence[str]) -> Any:
    """Those of its lanes that are judged; what is no list of lanes stays, for `Policy` to refuse."""
    own = fields.get("lanes")
    return [lane for lane in own if lane in lanes] if isinstance(own, list | tuple) else own


def _unjudged(
    merged: Sequence[tuple[str, dict[str, Any]]], narrowed: Sequence[tuple[str, dict[str, Any]]], lanes: Sequence[str]
) -> Iterator[str]:
    """Lanes without a criterion, and criteria of this very file that narrowing leaves out."""
    for lane in lanes:
        if not any(lane in (fields.get("lanes") or ()) for _, fields in narrowed):
            yield f"lanes: no criterion judges lane {lane!r}"
    kept = {place for place, _ in narrowed}
    for place, fields in merged:
        if place.startswith("criteria[") and place not in kept:
            yield f"{place}: criterion {fields['id']!r} is of no lane that this policy judges ({', '.join(lanes)})"
