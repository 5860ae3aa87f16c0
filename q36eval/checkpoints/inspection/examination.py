"""The whole inspection of one folder: files, configuration, coverage, and every weight once."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from q36eval.checkpoints.gguf.files import HeldGguf
from q36eval.checkpoints.inspection.configuration import (
    Shapes,
    configuration_findings,
    head_width,
    norm_centre,
    text_settings,
)
from q36eval.checkpoints.inspection.coverage import coverage_findings, coverage_rows, scheme_census
from q36eval.checkpoints.inspection.damaged_folder import integrity, open_damaged
from q36eval.checkpoints.inspection.declared_scheme import declarations, declared_findings
from q36eval.checkpoints.inspection.error import (
    MALFORMED,
    Examined,
    Pass,
    beyond_scheme,
    error_row,
    grouped,
    outliers,
)
from q36eval.checkpoints.inspection.extra_modules import left_out_findings
from q36eval.checkpoints.inspection.findings import OF_ITSELF, Finding, Inspection, Promise, Section, Severity
from q36eval.checkpoints.inspection.gguf import gguf_findings, open_damaged_gguf
from q36eval.checkpoints.inspection.servability import servability_findings
from q36eval.checkpoints.inspection.smoothing import smoothing_folded_out
from q36eval.checkpoints.inspection.stacks import examine_all
from q36eval.checkpoints.inspection.tokenizers import text_findings
from q36eval.checkpoints.inspection.values import activation_findings, kv_cache_findings, left_out_faults
from q36eval.checkpoints.names import fused_place, left_out_as
from q36eval.checkpoints.open_checkpoints import hold, opened_once
from q36eval.checkpoints.reader import Checkpoint, check_folder, experts_of, open_checkpoint, sizes_fault
from q36eval.checkpoints.schemes import quantization_config
from q36eval.checkpoints.supported_architectures import check_supported
from q36eval.checkpoints.weights import LogicalWeight, index_weights
from q36eval.errors import CorruptCheckpointError, EngineError, Q36Error, UsageError

MOST_NAMED = 3


def inspect_checkpoint(
    folder: Path,
    reference: Path | None = None,
    weights_workers: int | None = None,
    promises: tuple[Promise, ...] = (),
    template: str | None = None,
    named: Mapping[str, str] = {},
    scheme: str | None = None,
) -> Inspection:
    """Everything that can be said about a checkpoint without running it.

    Damage is reported, never raised; what could not be judged is missing from `measured`. `promises` are how tensors
    are said to be stored. `template` is the hash that the branch's own chat template is declared to have. `named` are
    texts that may name the scheme it is quantized by, by what they are (`the folder's name`), `scheme` the one that a
    person declares.

    Raises:
        UsageError: no such folder or no checkpoint in it, a quantization that is not decoded, or the reference
            cannot be read.
        EngineError: the memory of this machine does not suffice, or its disk gives errors.
        ChangedError: a file of one of them changed meanwhile.
    """
    check_folder(folder)
    with opened_once() as folders, ExitStack() as reading:
        folders.measure_against(reference)
        for place in (folder, reference):
            if place is not None:
                reading.enter_context(hold(place).being_read())
        workers = weights_workers or len(os.sched_getaffinity(0))
        found = _inspected(folder, reference, workers, promises, template)
        declared = declarations(folder, named)
        rules = {finding.rule for finding in found.findings}
        more = declared_findings(declared, scheme, found.schemes, found.quantized_share, rules)
        return found.model_copy(update={"findings": _sorted([*found.findings, *more]), "declared": declared})


def _inspected(
    folder: Path, reference: Path | None, workers: int, promises: tuple[Promise, ...], template: str | None
) -> Inspection:
    held = hold(folder)
    known = None if reference is None else _Reference(reference)
    gguf = held if isinstance(held, HeldGguf) else None
    checkpoint, findings, readable = open_damaged(held) if gguf is None else open_damaged_gguf(gguf)
    with suppress(CorruptCheckpointError):  # reported with the configuration
        check_supported(checkpoint)
    measured = [Section.INTEGRITY]
    reasons = Counter(reason for name in checkpoint.tensors if (reason := left_out_as(name)) is not None)
    updates: dict[str, Any] = {"left_out": dict(reasons)}
    updates |= _contents(checkpoint, readable, known, workers, promises, findings, measured)
    texts = None if reference is None else hold(reference)
    findings += text_findings(held, texts, _vocab_size(checkpoint.config), template)
    if gguf is not None and readable:
        findings += gguf_findings(checkpoint, gguf)
    if readable:
        theirs = None if known is None else known.checkpoint
        findings += left_out_findings(checkpoint, theirs, workers, promises)
    findings += not_judged(measured, known is not None, findings)
    named = None if reference is None else str(reference)
    return Inspection(
        checkpoint=str(folder), reference=named, findings=_sorted(findings), measured=tuple(measured), **updates
    )


def _contents(
    checkpoint: Checkpoint,
    readable: bool,
    known: "_Reference | None",
    workers: int,
    promises: tuple[Promise, ...],
    findings: list[Finding],
    measured: list[Section],
) -> dict[str, Any]:
    """Configuration, coverage and weights; adds to `findings` and `measured`, returns parts of the inspection."""
    if not checkpoint.config:
        return {}
    fault = sizes_fault(checkpoint.config)
    if fault is not None:
        findings.append(integrity("malformed-config", "config.json", f"config.json: {fault}."))
        return {}
    units, shapes = _units(checkpoint, findings, known) if readable else ({}, None)
    with _entries_judged(findings, measured, Section.CONFIGURATION if known else None):
        findings += configuration_findings(checkpoint, units, None if known is None else known.checkpoint.config)
    if shapes is None:
        return {}
    with _entries_judged(findings, measured, Section.COVERAGE):
        quantization = quantization_config(checkpoint)
        findings += coverage_findings(checkpoint, list(units.values()), shapes, quantization, promises)
    with _entries_judged(findings, measured, Section.SERVABILITY):
        # engines of safetensors fuse modules; of a GGUF every tensor has its own type
        findings += [] if checkpoint.schemes is not None else servability_findings(checkpoint, units, shapes)
    counterparts = {} if known is None else _counterparts(units, checkpoint, known, findings)
    how = Pass(
        shapes,
        counterparts,
        centre=norm_centre(checkpoint.config),
        head=head_width(checkpoint.config),
    )
    examined = examine_all(list(units.values()), how, workers)
    examined, smoothed = smoothing_folded_out(units, examined, how, workers)
    findings += smoothed
    updates = _judge(units, examined, findings)
    with _entries_judged(findings, measured, None):
        findings += [*activation_findings(units), *kv_cache_findings(checkpoint)]
        updates["coverage"] = coverage_rows(units.values(), shapes)
        updates["schemes"] = scheme_census(units.values(), shapes)
    if known and known.units.keys() >= units.keys() and updates["compared_weights"]:
        measured += [Section.WEIGHTS]
    return updates


def _counterparts(
    units: Mapping[str, LogicalWeight], checkpoint: Checkpoint, known: "_Reference", findings: list[Finding]
) -> dict[str, LogicalWeight]:
    """The reference's weights, less those that no weight of the branch can be compared with.

    Whoever prunes experts numbers the others again, so that none is known to be the reference's of its number, and
    their gates have other rows.
    """
    mine, theirs = (experts_of(text_settings(config)) for config in (checkpoint.config, known.checkpoint.config))
    if mine is None or theirs is None or mine >= theirs:
        return known.units
    of_number = ("routed experts", "router gates")
    alone = [
        name for name, unit in units.items() if unit.tensor_class in of_number and ".shared_expert_gate." not in name
    ]
    message = (
        f"it has {mine} of the reference's {theirs} experts a layer: {len(alone)} tensors of experts and their gates "
        f"have no counterpart and are compared with nothing, {', '.join(alone[:MOST_NAMED])} among them; the KL "
        f"judges them."
    )
    pruned = integrity("experts-pruned", "config.json", message)
    findings.append(pruned.model_copy(update={"section": Section.COVERAGE, "severity": Severity.ADVISORY}))
    return {name: unit for name, unit in known.units.items() if name not in alone}


@contextmanager
def _entries_judged(findings: list[Finding], measured: list[Section], section: Section | None) -> Iterator[None]:
    """One judgement over config.json's entries: one that an entry of the wrong kind breaks off is not measured."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        message = f"config.json has an entry of the wrong kind ({type(error).__name__}: {error})."
        findings.append(integrity("malformed-config", "config.json", message))
    else:
        measured += [section] if section else []


def not_judged(measured: list[Section], against_reference: bool, findings: list[Finding]) -> list[Finding]:
    """What could not be judged is no pass: where no finding says why, this one says that."""
    wanted = list(Section) if against_reference else list(OF_ITSELF)
    left = [section for section in wanted if section not in measured]
    if not left or any(finding.severity is Severity.BLOCKING for finding in findings):
        return []
    return [integrity("not-judged", "the checkpoint", f"{', '.join(left)} could not be judged.")]


class _Reference:
    """The reference, opened strictly: what is compared with must itself be whole."""

    def __init__(self, folder: Path) -> None:
        from q36eval.checkpoints.architecture import Architecture
        from q36eval.checkpoints.weight_slots import plan_of

        try:
            held = hold(folder)
            self.checkpoint = open_checkpoint(held)
            index = index_weights(self.checkpoint)
            self.units = index.weights
            self.outline = Architecture.of(self.checkpoint).outline
            plan_of(self.outline, self.checkpoint, index)
            for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
                if name in held:
                    held.json(name)
        except CorruptCheckpointError as error:
            raise UsageError(error.code, f"The reference cannot be used: {error}") from error
        except (ArithmeticError, LookupError, TypeError) as error:
            reason = f"config.json does not give the sizes of the model ({type(error).__name__}: {error})"
            raise UsageError("config-incomplete", f"The reference cannot be used: {folder}: {reason}.") from error


def _vocab_size(config: Mapping[str, Any]) -> int | None:
    settings = config.get("text_config") or config
    size = settings.get("vocab_size") if isinstance(settings, dict) else None
    return size if isinstance(size, int) else None


def _units(
    checkpoint: Checkpoint, findings: list[Finding], known: "_Reference | None"
) -> tuple[dict[str, LogicalWeight], Shapes | None]:
    """The weights and their shapes in the model, with findings about those that are missing, unexpected or not what is
    declared; no shapes where that cannot be told. Parameters that the reference ties are left out if they are equal."""
    from q36eval.checkpoints.architecture import Architecture
    from q36eval.checkpoints.weight_slots import leave_out_tied

    faults: dict[str, Q36Error] = {}
    rule = "malformed-config"
    try:
        outline = Architecture.of(checkpoint).outline
        rule = "quantization-not-read"
        index = index_weights(checkpoint, faults)
    except CorruptCheckpointError as error:
        findings.append(integrity(rule, "config.json", str(error)))
        return {}, None
    findings += _left_out_faults(checkpoint, [name for names in index.left_out.values() for name in names])
    units = index.weights
    places = outline.places(list(units))
    wrong = [
        integrity("not-as-declared", module, str(error)).model_copy(
            update={"section": Section.COVERAGE} if error.code == "stored-unquantized" else {}
        )
        for module, error in faults.items()
    ]
    named = {f"{module}.weight" for module in faults} | {*faults}
    missing = [
        integrity("missing-tensor", name, f"tensor {name!r} is missing.")
        for name in places.missing
        if name not in named and (fused_place(name) or ("",))[0] not in faults
    ]
    surplus = [
        integrity("unexpected-tensor", name, f"tensor {units[name].stored_names[0]!r} is unexpected in this model.")
        for name in places.unexpected
    ]
    findings += [*wrong, *missing, *surplus]
    shapes = {name: outline.shape_at(place) for name, place in places.of.items()}
    plan = {place.parameter: [(place.part, units[name])] for name, place in places.of.items()}
    for parameter, source in {**(known.outline.tied if known else {}), **outline.tied}.items():
        try:
            leave_out_tied(plan, parameter, source)
        except (CorruptCheckpointError, UsageError, RuntimeError) as error:
            # the pass over all weights reports other errors; the configuration differs if the reference alone ties it
            if getattr(error, "code", None) == "head-not-tied" and parameter in outline.tied:
                tied = integrity("tied-head", parameter, str(error))
                findings.append(tied.model_copy(update={"section": Section.CONFIGURATION}))
        else:
            units = {name: unit for name, unit in units.items() if not outline.is_for(name, parameter)}
    return units, shapes


def _left_out_faults(checkpoint: Checkpoint, names: list[str]) -> list[Finding]:
    findings: list[Finding] = []
    for name in names:
        try:
            findings += left_out_faults(checkpoint, [name])
        except EngineError:
            raise
        except MALFORMED as error:
            findings.append(integrity("unreadable-tensor", name, f"{name} cannot be read ({error})."))
    return findings


def _judge(units: Mapping[str, LogicalWeight], examined: list[Examined], findings: list[Finding]) -> dict[str, Any]:
    """What the pass found, judged; returns the parts of the inspection that come from it."""
    found = [finding for outcome in examined for finding in outcome.findings]
    rules = list(dict.fromkeys(finding.rule for finding in found))
    findings += sorted(found, key=lambda finding: rules.index(finding.rule))
    errors = [outcome.error for outcome in examined if outcome.error is not None]
    groups = grouped(errors)
    plain = frozenset(name for name, unit in units.items() if unit.is_plain)
    rows = tuple(error_row(kind, stored, members) for (kind, stored), members in groups.items())
    beyond = beyond_scheme(errors)
    counted = {finding.subject for finding in beyond if finding.severity is Severity.BLOCKING}
    findings += [*beyond, *(finding for finding in outliers(groups, plain) if finding.subject not in counted)]
    unbounded = sum(error.usage is None and error.name not in plain for error in errors)
    return {"errors": rows, "compared_weights": len(errors), "unbounded_weights": unbounded}


def _sorted(findings: list[Finding]) -> tuple[Finding, ...]:
    """Blocking first, otherwise in the order they were found."""
    return tuple(sorted(findings, key=lambda finding: finding.severity != "blocking"))
