"""What `--plan` prints: the batches of every deployment, and what each stage asks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from q36eval.app.cli.options import note, open_history, print_json
from q36eval.app.cli.tables import print_plain
from q36eval.errors import ExitCode
from q36eval.reports.text import duration

if TYPE_CHECKING:
    from q36eval.config.paths import Paths
    from q36eval.run.request import Request
    from q36eval.run.workload import RunPlan, StagePlan


def show_runs(requests: "Sequence[Request]", paths: "Paths", *, as_json: bool) -> int:
    """Print what each request would compute.

    Raises:
        UsageError, CorruptCheckpointError: one cannot be measured.
    """
    from q36eval.run.workload import planned_run

    history = open_history(paths) if paths.has_history else None
    return show_plans([planned_run(request, paths, history) for request in requests], as_json=as_json)


def show_plans(plans: "Sequence[RunPlan]", *, as_json: bool) -> int:
    """Print them; nothing was measured, and that is no failure."""
    if as_json:
        print_json({"plans": [_document(plan) for plan in plans]})
        return int(ExitCode.PASS)
    for plan in plans:
        for sentence in plan.notes:
            note(sentence)
        _print(plan)
    print_plain("Nothing was measured; leave out --plan to begin.")
    return int(ExitCode.PASS)


def _print(plan: "RunPlan") -> None:
    from q36eval.run.memory_report import batches_line

    for deployment, batches in plan.batches.items():
        print_plain(f"{deployment}: {batches_line(batches)}")
    for stage in plan.stages:
        print_plain(_stage_line(stage))
    for unknown in plan.unknown:
        print_plain(f"Not known yet: {unknown}.")
    if any(stage.seconds is None for stage in plan.stages):
        print_plain("A stage's time is known where an earlier run measured the same on this device.")


def _stage_line(stage: "StagePlan") -> str:
    parts = [f"{stage.items:,} items"]
    if stage.scored:
        batches = _in_batches(stage.scoring_batches)
        parts.append(f"{stage.scored:,} texts of {stage.scored_tokens:,} tokens scored{batches}")
    if stage.answers:
        batches = _in_batches(stage.answering_batches)
        parts.append(
            f"{stage.answers:,} prompts of {stage.prompt_tokens:,} tokens answered{batches} with at most "
            f"{stage.answer_tokens:,} tokens"
        )
    parts.append("time unknown" if stage.seconds is None else f"≈ {duration(stage.seconds)}")
    return f"{stage.deployment}, {stage.stage}: {'; '.join(parts)}"


def _in_batches(count: int) -> str:
    """Nothing of an engine that forms none itself."""
    return f" in {count:,} batches" if count else ""


def _document(plan: "RunPlan") -> dict[str, Any]:
    from q36eval.run.memory_report import plan_document

    return {
        "batches": {deployment: plan_document(batches) for deployment, batches in plan.batches.items()},
        "stages": [vars(stage) for stage in plan.stages],
        "unknown": list(plan.unknown),
    }
