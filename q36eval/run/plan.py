"""The probes of a run, put together from a suite, the corpus asked for, and the reference's own sampled answers."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from q36eval.config import Family, Paths
from q36eval.probes import Probe, Progress
from q36eval.records import ProbeName
from q36eval.run.material import corpus_of, material_of
from q36eval.run.reference import Reference
from q36eval.run.request import SHIPPED_CANARIES, CanaryChoice
from q36eval.run.suites import suite_place

if TYPE_CHECKING:
    from q36eval.canaries.probe import CanaryProbe
    from q36eval.evals.probe import EvalsProbe
    from q36eval.kl.planning import Material


@dataclass(frozen=True)
class Scored:
    """What a divergence is measured on: the suite's corpus or the file's, so many tokens fed at a time."""

    suite: str
    family_context: int
    corpus: Path | None = None
    context: int | None = None


@dataclass(frozen=True)
class Limits:
    """How much of a suite is asked. `family` declares what its models have learnt; None declares everything.

    Of each eval task at most `max_items`. `tokenizer_sha256` is the tokenizer's that evals will be asked with.
    """

    family: Family | None = None
    canaries: CanaryChoice = SHIPPED_CANARIES
    max_items: int | None = None
    allow_code_execution: bool = False
    tokenizer_sha256: str | None = None


def build_probes(
    names: Sequence[ProbeName],
    suite: str,
    paths: Paths,
    material: "Callable[[], Material]",
    limits: Limits | None = None,
) -> list[Probe]:
    """The probes that ask something, for that suite; `material` says what the KL probe scores.

    What is left out, because it would run programs or because the family has not learnt it, is told.

    Raises:
        UsageError: an unknown suite, data that is not what its manifest says, or a canary that cannot be asked.
        EngineError: the reference could not answer what its sampled answers are made of.
    """
    limits = limits or Limits()
    suite_place(suite, paths)
    # first what may lack its data: `material` may load the reference and let it answer for hours
    evals = [build_evals(suite, paths, limits)] if ProbeName.EVALS in names else []
    found: list[Probe] = [build_canaries(suite, limits)] if ProbeName.CANARIES in names else []
    if ProbeName.KL in names:
        from q36eval.kl.probe import KLProbe

        scored = material()
        found.append(KLProbe(scored.documents, scored.context, scored.overlap, answers=scored.answers, notify=_tell))
    return [*found, *evals]


def build_canaries(suite: str, limits: Limits) -> "CanaryProbe":
    """The canary probe of that suite; see `build_probes`."""
    from q36eval.canaries.probe import CanaryProbe
    from q36eval.canaries.specification import draws_per_family, for_family, left_out, left_out_sentence, load_specs

    chosen = limits.canaries
    skills = None if limits.family is None else limits.family.skills
    draws = chosen.draws or draws_per_family(suite)
    if not chosen.only and limits.family is not None:
        absent = left_out(load_specs(own=chosen.own, skills=None), skills)
        if absent:
            _tell(left_out_sentence(absent, limits.family.name))
    found = load_specs(own=chosen.own, only=chosen.only or None, n=draws, skills=skills)
    if limits.family is not None:
        found = for_family(found, limits.family.answers)
    shipped = {spec.id for spec in load_specs(skills=None)} if chosen.own is not None else {spec.id for spec in found}
    asked = [spec for spec in found if spec.id in shipped]
    own = [spec for spec in found if spec.id not in shipped]
    return CanaryProbe(asked, own, "qwen3_xml" if limits.family is None else limits.family.tool_format)


def build_evals(suite: str, paths: Paths, limits: Limits) -> "EvalsProbe":
    """The eval probe of that suite; see `build_probes`."""
    from q36eval.evals.probe import EvalsProbe

    place = suite_place(suite, paths)
    probe = EvalsProbe(
        place.file,
        data=place.data,
        max_items=limits.max_items,
        allow_code_execution=limits.allow_code_execution,
    )
    if limits.tokenizer_sha256 is not None:
        probe.check_tokenizer(limits.tokenizer_sha256)
    for sentence in probe.skipped:
        _tell(sentence)
    return probe


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def material(scored: Scored, reference: Reference, paths: Paths, progress: Progress) -> "Material":
    """Documents and sampled answers; the reference is loaded when it has not answered yet.

    Raises:
        UsageError: a corpus that cannot be used, or answers that a pack lacks.
        EngineError: the reference could not answer.
    """
    from q36eval.kl.corpus import corpus_sha256
    from q36eval.kl.floor_file import CAPTURED_AGAIN
    from q36eval.kl.on_policy import SAMPLED_AGAIN

    corpus = corpus_of(scored.suite, scored.corpus, paths)
    if reference.pack is not None:  # told before the answers, which go with the documents, are missed
        documents = {"corpus": corpus_sha256(corpus[1])}
        reference.pack.check_suite(ProbeName.KL, documents)
    limits = (scored.family_context, scored.context)
    remedy = SAMPLED_AGAIN if reference.pack is None else CAPTURED_AGAIN
    return material_of(corpus, limits, reference.identity, reference.engine, reference.root, paths, progress, remedy)
