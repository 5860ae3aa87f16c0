"""The output of `--plan`: missing prerequisites, and the work of each stage."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from q36eval.app.cli.options import open_history, print_json
from q36eval.app.cli.tables import print_plain
from q36eval.errors import ExitCode
from q36eval.inert_text import SENTENCE, plain
from q36eval.reports.text import duration

if TYPE_CHECKING:
    from q36eval.app.needs import Asked, Row
    from q36eval.config.paths import Paths
    from q36eval.run.preflight import Problem
    from q36eval.run.request import Request
    from q36eval.run.workload import RunPlan, StagePlan


def show_runs(
    requests: "Sequence[Request]",
    paths: "Paths",
    *,
    as_json: bool,
    asked: "Asked | None" = None,
    found: "Sequence[Problem]" = (),
) -> int:
    """Print each request's needs and computation; `found` are the problems of building it.

    Raises:
        UsageError, CorruptCheckpointError: one cannot be measured.
    """
    from q36eval.app.needs import Asked, look
    from q36eval.run.workload import RunPlan

    history = open_history(paths) if paths.has_history else None
    documents = []
    for request in requests:
        looked = look(request, asked or Asked(request.branch.name), paths, history, found)
        if not as_json:
            print_rows(looked.rows)
        if looked.refused is not None:
            raise looked.refused
        planned = {"rows": [asdict(row) for row in looked.rows]}
        plan = looked.plan or RunPlan({}, (), ())
        documents.append(planned | _document(plan))
        if not as_json:
            _print(plan)
    return _end(documents, as_json=as_json)


def show_plans(plans: "Sequence[RunPlan]", *, as_json: bool) -> int:
    """Print plans of captures; measuring nothing is not a failure."""
    from q36eval.run.memory_report import batches_line

    for plan in [] if as_json else plans:
        for deployment, batches in plan.batches.items():
            print_plain(f"{deployment}: {batches_line(batches)}")
        _print(plan)
    return _end([_document(plan) for plan in plans], as_json=as_json)


def _end(documents: list[dict[str, Any]], *, as_json: bool) -> int:
    if as_json:
        print_json({"plans": documents})
    else:
        print_plain("Nothing was measured. Remove --plan to start.")
    return int(ExitCode.PASS)


def print_rows(rows: "Iterable[Row]", *, all_of_it: bool = True, file: TextIO | None = None) -> None:
    """The table: state, item, a sentence, and the fixing command on a separate line, for copying.

    Without `all_of_it`, only the missing rows, without the sentences, which the following errors contain.
    """
    for row in rows:
        lines = [plain(line, SENTENCE) for line in row.sentence.splitlines()] if all_of_it else []
        if row.command:
            lines.append(f"→ {plain(row.command, SENTENCE)}")
        if all_of_it or row.state == "missing":
            print((f"{row.state:<8} {row.what:<13}" + f"\n{'':22}".join(lines)).rstrip(), file=file)


def _print(plan: "RunPlan") -> None:
    for stage in plan.stages:
        print_plain(_stage_line(stage))
    for unknown in plan.unknown:
        print_plain(f"Not known yet: {unknown}.")


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
    """Empty for an engine that forms no batches."""
    return f" in {count:,} batches" if count else ""


def _document(plan: "RunPlan") -> dict[str, Any]:
    from q36eval.run.memory_report import plan_document

    return {
        "batches": {deployment: plan_document(batches) for deployment, batches in plan.batches.items()},
        "stages": [vars(stage) for stage in plan.stages],
        "unknown": list(plan.unknown),
    }
