"""What the figures of a run were measured on and of what, as it may be told in public; kept in a run's provenance."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from q36eval.records import ProbeName, Record

NOT_JUDGED = "not_judged"
"""Where a run's provenance holds the sentences of `recorded_not_judged`."""


class MeasuredOn(Record):
    """The items behind the figures of one slice.

    `title` says in words what they are. `dataset` is their repository on the Hub, only where they are that dataset's
    own, at `revision` (a git commit); look-alikes and generated items have none.
    """

    title: str
    dataset: str | None = None
    revision: str | None = None
    num_fewshot: int | None = None


class Subject(Record):
    """The branch by what it is called in public: the model it was made from, its repository, how it was quantized.

    `commit` is set where the files came from the Hub. `reference` is what it was compared with, in words.
    """

    base_model: str
    repository: str | None = None
    revision: str | None = None
    commit: str | None = None
    scheme: str | None = None
    reference: str | None = None


def recorded_subject(provenance: Mapping[str, Any]) -> Subject | None:
    """What a run's provenance says of its branch; None where it was made before that was kept."""
    try:
        return Subject.model_validate(provenance["subject"])
    except (KeyError, ValidationError):
        return None


def recorded_not_judged(provenance: Mapping[str, Any]) -> tuple[str, ...]:
    """For people: which canaries a run left out because of the models' chat template, and why."""
    sentences = provenance.get(NOT_JUDGED)
    return tuple(map(str, sentences)) if isinstance(sentences, list) else ()


def recorded(
    provenance: Mapping[str, Any], probe: ProbeName, slice_name: str
) -> tuple[MeasuredOn, str] | tuple[None, None]:
    """What a run's provenance says the figures of that slice were measured on, and which part of it the slice is.

    `mmlu/anatomy` is the part `anatomy` of `mmlu`; what has no entry is a part of the probe's entry `all`. None where
    nothing is said: the run was made before that was kept.
    """
    kept = provenance.get("measured_on")
    by_slice = kept.get(probe.value) if isinstance(kept, dict) else None
    if not isinstance(by_slice, dict):
        return None, None
    name = slice_name
    while name not in by_slice and "/" in name:
        name = name.rpartition("/")[0]
    name = name if name in by_slice else "all"
    try:
        measured_on = MeasuredOn.model_validate(by_slice.get(name))
    except ValidationError:
        return None, None
    return measured_on, "" if name == slice_name else slice_name.removeprefix(f"{name}/")
