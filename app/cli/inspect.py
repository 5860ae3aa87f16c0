"""`q36eval inspect`: does a checkpoint match its description, and how far is it from the reference or another one?"""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from q36eval.app.cli.options import (
    BRANCH_HELP,
    CHECKPOINT,
    FamilyIfAny,
    JsonOption,
    Quiet,
    ReferenceOption,
    SchemeOption,
    note,
    open_history,
    print_json,
    show_targets,
)
from q36eval.app.targets import DerivedFamily, belongs, family_of, project_template, reference_of_family, resolve
from q36eval.config import Family
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode, UsageError
from q36eval.provenance import provenance
from q36eval.run.request import Target

if TYPE_CHECKING:
    from q36eval.checkpoints.inspection import Inspection


def inspect(
    checkpoint: Annotated[str, typer.Argument(help=BRANCH_HELP, metavar="BRANCH|PATH", **CHECKPOINT)],
    reference: ReferenceOption = None,
    workers: Annotated[int | None, typer.Option(help="Threads; one per core by default.", min=1)] = None,
    family: FamilyIfAny = None,
    scheme: SchemeOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check a checkpoint without running it.

    Checks files, configuration, coverage and weight error; exit 1 on damage.
    """
    from q36eval.app.cli.progress import ConsoleProgress
    from q36eval.run.templates import shipped_template
    from q36eval.run.weights import names_of, promises_of

    paths = Paths.default()
    chosen = family_of(family, paths, checkpoint, reference, needs_reference=False, notify=note)
    target = resolve(checkpoint, chosen, paths, note)
    base = _reference(reference, target, chosen, paths)
    show_targets([target], base)
    with ConsoleProgress() as progress:
        from q36eval.checkpoints.inspection import inspect_checkpoint

        progress.stage("inspecting the checkpoint", 1)
        inspection = inspect_checkpoint(
            target.folder,
            None if base is None else base.folder,
            workers,
            promises_of(chosen, target.name),
            shipped_template(chosen, target, project_template(family)),
            names_of(chosen, target),
            scheme,
        )
        progress.advance()
    run = _record(inspection, target, chosen, paths)
    if as_json:
        print_json({"run": run, "branch": target.name, **_plain(inspection)})
    else:
        from q36eval.app.cli.inspect_report import print_inspection

        print_inspection(inspection, run, findings_only=Quiet.wanted)
    return int(ExitCode.FAIL if inspection.blocking else ExitCode.PASS)


def _reference(named: str | None, target: Target, family: Family, paths: Paths) -> Target | None:
    """The named reference, else the family's if the checkpoint can belong to it and it is on this machine."""
    if named is not None:
        return resolve(named, family, paths, note)
    if isinstance(family, DerivedFamily):
        return None
    try:
        reference = reference_of_family(family, paths)
    except UsageError:
        return None
    return reference if target.name in family.branches or belongs(target.folder, family, paths) else None


def _record(inspection: "Inspection", target: Target, family: Family, paths: Paths) -> str:
    """Write the measurements to history, as the other probe commands do; returns the run's id."""
    from q36eval.run.weights import measurements

    history = open_history(paths, writing=True)
    run = history.start_run(
        family=family.name,
        branch=target.name,
        identity=None,
        reference_identity=None,
        provenance=provenance(paths.repository),
    )
    for measurement in measurements(inspection):
        history.add_measurement(run.id, measurement)
    history.finish_run(run.id)
    return run.id


def _plain(inspection: "Inspection") -> dict[str, object]:
    body: dict[str, object] = json.loads(inspection.model_dump_json())
    rows = zip(body["coverage"], inspection.coverage, strict=True)  # type: ignore[call-overload]
    body["coverage"] = [{**plain, "bits_per_weight": row.bits_per_weight} for plain, row in rows]
    return body
