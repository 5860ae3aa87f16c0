"""What a run is measured on, told by its request and probes before anything is asked."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from q36eval.config import Paths
from q36eval.measured_on import MeasuredOn, Subject
from q36eval.probes import Probe
from q36eval.records import Lane, ProbeName
from q36eval.run.suites import suite_place

if TYPE_CHECKING:
    from q36eval.run.request import Request

CANARIES = "prompts of q36eval's canaries, answers checked exactly"


def published_facts(request: "Request", probes: Sequence[Probe], paths: Paths) -> dict[str, Any]:
    """`subject`, `measured_on` and `unverified` of a run's provenance (see `q36eval.measured_on`), as JSON values."""
    found = {probe.name.value: _of_probe(request, probe) for probe in probes}
    return {
        "subject": _subject(request).model_dump(mode="json"),
        "measured_on": {
            name: {slice_name: on.model_dump(mode="json", exclude_none=True) for slice_name, on in by_slice.items()}
            for name, by_slice in found.items()
        },
        "unverified": sorted({name for probe in probes for name in _unverified(request, probe, paths)}),
    }


def _unverified(request: "Request", probe: Probe, paths: Paths) -> Sequence[str]:
    """The repositories that a probe's frozen items are said to be from, where nothing vouches for it."""
    if probe.name is ProbeName.KL:
        from q36eval.run.corpora import unverified_texts

        own = request.corpus is not None
        return (
            () if own else unverified_texts(request.suite.partition("=")[0], suite_place(request.suite, paths).corpus)
        )
    told: Sequence[str] = getattr(probe, "unverified", ())
    return told


def _subject(request: "Request") -> Subject:
    family = request.family
    subject = Subject(base_model=family.base_model, reference=_reference(request))
    branch = family.branches.get(request.branch.name)  # a folder that was named has no published alias
    if branch is None:
        return subject
    source = {"repository": branch.source.repository, "revision": branch.source.revision}
    return subject.model_copy(update={**source, "scheme": branch.scheme})


def _reference(request: "Request") -> str:
    family = request.family
    name = family.reference if request.reference is None else request.reference.name
    branch = family.branches.get(name)
    if branch is None:
        return "a checkpoint that is no published branch"
    return f"{branch.scheme} of {branch.source.repository or family.base_model}"


def _of_probe(request: "Request", probe: Probe) -> dict[str, MeasuredOn]:
    if probe.name is ProbeName.KL:
        corpus = f"the suite {request.suite}" if request.corpus is None else request.corpus.stem
        return {"all": MeasuredOn(title=f"held-out texts: the corpus of {corpus}")}
    if probe.name is ProbeName.CANARIES:
        asked = CANARIES if request.canaries.own is None else f"{CANARIES}, and canaries of the publisher's own"
        lanes = {lane.value: MeasuredOn(title=f"{lane.value} {asked}") for lane in Lane}
        return {"all": MeasuredOn(title=asked), **lanes}
    told: dict[str, MeasuredOn] = getattr(probe, "measured_on", {})
    return told
