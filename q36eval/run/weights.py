"""The weights probe's measurements: counts of an inspection's findings, with the findings in the notes."""

from collections.abc import Sequence

from q36eval.checkpoints.inspection import Inspection, Promise, Section
from q36eval.checkpoints.inspection.extra_modules import SHIPPED
from q36eval.checkpoints.inspection.findings import OF_ITSELF
from q36eval.config import Family
from q36eval.gate.margins import QUANTIZED_TENSORS
from q36eval.metrics import METRICS, DeclaredFigure
from q36eval.records import Counts, Measurement, ProbeName
from q36eval.run.request import Target

CENSUSES = {
    Section.INTEGRITY: ("integrity_faults", "every stored tensor was used once, every parameter filled once"),
    Section.COVERAGE: ("coverage_faults", "what is quantized is what the configuration declares"),
    Section.WEIGHTS: ("errors_beyond_scheme", "no weight is further from the reference than its scheme can take it"),
    Section.CONFIGURATION: (
        "configuration_differences",
        "configuration, tokenizer, chat template and generation config are as the reference's",
    ),
    Section.SERVABILITY: ("served_differences", "no known fault of an engine is met by these files"),
}
NOTED = 20
"""Findings named in one note."""


def integrity(faults: Sequence[str], scored: int = 1) -> Measurement:
    """A census of integrity faults; the note names them."""
    return _census(Section.INTEGRITY, faults, scored, 0)


def measurements(inspection: Inspection, more_faults: Sequence[str] = ()) -> list[Measurement]:
    """One census per judged section; a section that could not be judged is omitted, so that it never passes.

    Then the number of quantized weights by scheme, if every scheme is known. `more_faults` are integrity faults found
    elsewhere, such as by the loader. Weights whose scheme has no known bound count as errored in
    `errors_beyond_scheme`.
    """
    figures: list[Measurement] = []
    for section in CENSUSES:
        if section not in inspection.measured:
            continue
        messages = [f"{finding.subject}: {finding.message}" for finding in inspection.blocking_in(section)]
        messages += more_faults if section is Section.INTEGRITY else ()
        errored = inspection.unbounded_weights if section is Section.WEIGHTS else 0
        figures.append(_census(section, messages, inspection.compared_weights - errored, errored))
    return [*figures, *_schemes(inspection)]


def promises_of(family: Family, branch: str) -> tuple[Promise, ...]:
    """The family file's declaration of a branch's stored tensors and additional files.

    Empty for a folder that is not one of its branches.
    """
    if branch not in family.branches:
        return ()
    known = family.branches[branch]
    stores = [Promise(tensors=one.tensors, stored=one.stored, source=one.source) for one in known.stores]
    ships = [Promise(tensors=SHIPPED[one.part], stored=one.stored, source=one.source) for one in known.ships]
    return (*stores, *ships)


def names_of(family: Family, target: Target) -> dict[str, str]:
    """Texts that may name the scheme of a branch, by their kind."""
    branch = family.branches.get(target.name)
    if branch is None and target.snapshot is not None:
        return {"its repository": f"{target.snapshot.repository}@{target.snapshot.revision}"}
    if branch is None:
        return {"its name": target.name.rstrip("/").rpartition("/")[2]}
    repository = {} if branch.source.repository is None else {"its repository": str(branch.source)}
    return {"the family's file": branch.scheme, **repository}


def _schemes(inspection: Inspection) -> list[Measurement]:
    """The number of quantized weights, in all and by scheme, for margins that name schemes."""
    counts = inspection.schemes
    if counts is None:
        return []
    note = ", ".join(f"{name} {count}" for name, count in counts.items()) or "nothing is quantized"
    share = inspection.quantized_share
    note += f"; {share:.1%} of the parameters" if counts and share is not None else ""
    return [
        METRICS[ProbeName.WEIGHTS, QUANTIZED_TENSORS].counted(
            count, Counts(total=max(1, count), scored=max(1, count), errored=0), name, note=note
        )
        for name, count in {"all": sum(counts.values()), **counts}.items()
    ]


def declared_figures(*, against_reference: bool = True) -> list[DeclaredFigure]:
    """The figures that `measurements` returns for a complete checkpoint, with or without the reference's weights."""
    names = [name for section, (name, _) in CENSUSES.items() if against_reference or section in OF_ITSELF]
    return [METRICS[ProbeName.WEIGHTS, name].declared() for name in (*names, QUANTIZED_TENSORS)]


def _census(section: Section, messages: Sequence[str], scored: int, errored: int) -> Measurement:
    name, clean = CENSUSES[section]
    scored = max(1, scored, len(messages))
    noted = [*messages[:NOTED], *([f"and {len(messages) - NOTED} more"] if len(messages) > NOTED else [])]
    counts = Counts(total=scored + errored, scored=scored, errored=errored)
    return METRICS[ProbeName.WEIGHTS, name].counted(len(messages), counts, note="\n".join(noted) or clean)
