"""The probes of a run, built from its request, and its publishable facts."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.canaries.specification import (
    draws_per_family,
    for_family,
    left_out,
    left_out_sentence,
    load_specs,
    not_judged,
)
from q36eval.config import Family, Paths
from q36eval.evals.suite import read_suite
from q36eval.kl.corpus import corpus_sha256
from q36eval.measurement_facts import NOT_JUDGED, MeasuredOn, Subject
from q36eval.probes import Probe, Progress
from q36eval.records import Lane, ProbeFailure, ProbeName
from q36eval.run.materials import corpus_of, material_of
from q36eval.run.reference import Reference
from q36eval.run.request import SHIPPED_CANARIES, CanaryChoice, Request
from q36eval.run.suites import named_canaries, suite_place

if TYPE_CHECKING:
    from q36eval.canaries.probe import CanaryProbe
    from q36eval.evals.probe import EvalsProbe
    from q36eval.kl.planning import Material


@dataclass(frozen=True)
class Scored:
    """The scored texts of a divergence: the suite's corpus or the file's, and the number of tokens fed at a time."""

    suite: str
    family_context: int
    corpus: Path | None = None


@dataclass(frozen=True)
class Limits:
    """The evaluated part of a suite. `family` declares what its models have learnt; None declares everything.

    At most `max_items` per eval task. `tokenizer_sha256` is that of the tokenizer used for the evals.
    """

    family: Family | None = None
    canaries: CanaryChoice = SHIPPED_CANARIES
    max_items: int | None = None
    tokenizer_sha256: str | None = None


def limits_of(request: Request, reference: Reference | None) -> Limits:
    """The part of its suite that a request evaluates."""
    return Limits(
        family=request.family,
        canaries=request.canaries,
        max_items=request.max_items,
        tokenizer_sha256=None if reference is None else reference.identity.tokenizer_sha256,
    )


def build_probes(
    names: Sequence[ProbeName],
    suite: str,
    paths: Paths,
    material: "Callable[[], Material]",
    limits: Limits,
    built: Sequence[Probe] = (),
) -> list[Probe]:
    """The probes that evaluate items, for that suite; `material` returns the KL probe's texts.

    `built` are probes built before. Parts omitted because they would run programs, or because the family has not learnt
    them, are printed.

    Raises:
        UsageError: an unknown suite, data that does not match its manifest, or a canary that cannot be evaluated.
        EngineError: the reference could not answer for its sampled answers.
    """
    asked = read_suite(suite_place(suite, paths).file)
    before = {probe.name: probe for probe in built}
    # first those that may lack data: `material` may load the reference and have it answer for hours
    evals: list[Probe] = []
    if ProbeName.EVALS in names and asked.groups:
        evals = [before.get(ProbeName.EVALS) or build_evals(suite, paths, limits)]
    probes: list[Probe] = []
    if ProbeName.CANARIES in names:
        canaries = before.get(ProbeName.CANARIES) or build_canaries(suite, limits, named_canaries(suite, paths))
        probes = [] if limits.family is not None and not limits.family.template.present else [canaries]
    if ProbeName.KL in names:
        from q36eval.kl.probe import KLProbe

        scored = material()
        probes.append(KLProbe.of(scored, _notify))
    return [*probes, *evals]


def build_canaries(suite: str, limits: Limits, named: str | None = None) -> "CanaryProbe":
    """The canary probe of that suite, whose file names the set of canaries; see `build_probes`."""
    from q36eval.canaries.probe import CanaryProbe

    chosen = limits.canaries
    skills = None if limits.family is None else limits.family.skills
    context = None if limits.family is None else limits.family.context_length
    draws = chosen.draws or draws_per_family(suite, named)
    if not chosen.only and limits.family is not None:
        absent = left_out(load_specs(own=chosen.own, skills=None, named=named), skills)
        if absent:
            _notify(left_out_sentence(absent, limits.family.name))
    only = chosen.only or None
    specs = load_specs(own=chosen.own, only=only, n=draws, skills=skills, named=named, context=context)
    sentences: tuple[str, ...] = ()
    if limits.family is not None:
        sentences = not_judged(specs, limits.family)
        specs = for_family(specs, limits.family)
    for sentence in sentences:
        _notify(sentence)
    every = load_specs(skills=None, named=named) if chosen.own is not None else specs
    shipped = {spec.id for spec in every}
    ours = [spec for spec in specs if spec.id in shipped]
    own = [spec for spec in specs if spec.id not in shipped]
    if limits.family is None:
        return CanaryProbe(ours, own)
    probe = CanaryProbe(ours, own, limits.family.tool_format, system=limits.family.template.system)
    probe.not_judged, probe.where_able = sentences, named is not None
    return probe


def build_evals(suite: str, paths: Paths, limits: Limits) -> "EvalsProbe":
    """The eval probe of that suite; see `build_probes`."""
    from q36eval.evals.probe import EvalsProbe

    place = suite_place(suite, paths)
    probe = EvalsProbe(place.file, data=place.data, max_items=limits.max_items)
    if limits.tokenizer_sha256 is not None:
        probe.check_tokenizer(limits.tokenizer_sha256, limits.family.context_length if limits.family else None)
    for sentence in probe.skipped:
        _notify(sentence)
    return probe


def _notify(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def material(scored: Scored, reference: Reference, paths: Paths, progress: Progress) -> "Material":
    """Documents and sampled answers; the reference is loaded if it has not answered yet.

    Raises:
        UsageError: an unusable corpus, or answers missing from a pack.
        EngineError: the reference could not answer.
    """
    corpus = corpus_of(scored.suite, scored.corpus, paths)
    if reference.pack is not None:  # reported before the answers, which belong to the documents, are missed
        documents = {"corpus": corpus_sha256(corpus[1])}
        reference.pack.check_suite(ProbeName.KL, documents)
    return material_of(
        corpus, scored.family_context, reference.identity, reference.engine, reference.root, paths, progress
    )


CANARIES = "prompts of q36eval's canaries, answers checked exactly"


def published_facts(request: Request, probes: Sequence[Probe]) -> dict[str, Any]:
    """`subject`, `measured_on` and the unjudged parts of a run, as JSON values (see `q36eval.measurement_facts`)."""
    measured_on = {probe.name.value: _of_probe(request, probe) for probe in probes}
    unsuited = [f"The canaries are not judged, since {failure.reason}." for failure in unsuited_probes(request)]
    sentences = [*unsuited, *(sentence for probe in probes for sentence in probe.not_judged)]
    return ({NOT_JUDGED: sentences} if sentences else {}) | {
        "subject": _subject(request).model_dump(mode="json"),
        "measured_on": {
            name: {slice_name: on.model_dump(mode="json", exclude_none=True) for slice_name, on in by_slice.items()}
            for name, by_slice in measured_on.items()
        },
    }


def unsuited_probes(request: Request) -> list[ProbeFailure]:
    """The probe that does not suit the models: canaries without a chat template."""
    family, trouble = request.family, request.family.template.trouble
    if family.template.present or ProbeName.CANARIES not in request.probes:
        return []
    reason = f"the models of {family.name} have no chat template{f' that can be used ({trouble})' if trouble else ''}"
    return [ProbeFailure(probe=ProbeName.CANARIES, reason=reason, kind="unsuited")]


def _subject(request: Request) -> Subject:
    family = request.family
    against = None if request.stands_alone else _reference(request)
    branch = family.branches.get(request.branch.name)  # a folder given by path has no published alias
    source = {} if branch is None else branch.source.model_dump(include={"repository", "revision"})
    downloaded = request.branch.snapshot
    if downloaded is not None:
        source = {name: getattr(downloaded, name) for name in ("repository", "revision", "commit")}
    scheme = None if branch is None else branch.scheme
    return Subject(base_model=family.base_model, reference=against, scheme=scheme, **source)


def _reference(request: Request) -> str:
    family = request.family
    name = family.reference if request.reference is None else request.reference.name
    branch = family.branches.get(name)
    downloaded = None if request.reference is None else request.reference.snapshot
    commit = "" if downloaded is None else f" at commit {downloaded.commit}"
    if branch is not None:
        return f"{branch.scheme} of {branch.source.repository or family.base_model}{commit}"
    return "an unpublished checkpoint" if downloaded is None else f"{downloaded.repository}{commit}"


def _of_probe(request: Request, probe: Probe) -> Mapping[str, MeasuredOn]:
    if probe.name is ProbeName.KL:
        corpus = f"the suite {request.suite}" if request.corpus is None else request.corpus.stem
        return {"all": MeasuredOn(title=f"held-out texts: the corpus of {corpus}")}
    if probe.name is ProbeName.CANARIES:
        title = CANARIES if request.canaries.own is None else f"{CANARIES}, and canaries of the publisher's own"
        lanes = {lane.value: MeasuredOn(title=f"{lane.value} {title}") for lane in Lane}
        return {"all": MeasuredOn(title=title), **lanes}
    return probe.measured_on
