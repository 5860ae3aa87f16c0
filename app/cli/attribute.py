"""`q36eval attribute`: the classes of tensors and the layers that cause the KL."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli.engine_options import engine_options
from q36eval.app.cli.options import (
    CorpusIfAny,
    FamilyIfAny,
    JsonOption,
    OneBranch,
    Quiet,
    ReferenceOption,
    SuiteOption,
    note,
    open_history,
    print_json,
    resolve_reference,
    show_targets,
    texts_of,
)
from q36eval.app.cli.tables import plain_table, print_parts
from q36eval.app.targets import family_of, resolve
from q36eval.config.paths import Paths
from q36eval.engines import IN_PROCESS, EngineOptions
from q36eval.errors import UsageError
from q36eval.records import branch_title

if TYPE_CHECKING:
    from rich.console import RenderableType

    from q36eval.kl.attribution import Attribution, Blame
    from q36eval.kl.serving_error import LayerError, ServingError
    from q36eval.run.attribution import Plan


@engine_options()
def attribute(
    branch: OneBranch,
    engine: EngineOptions,
    reference: ReferenceOption = None,
    family: FamilyIfAny = None,
    suite: SuiteOption = None,
    weights_only: Annotated[
        bool, typer.Option("--weights-only", help="Do not emulate the quantization of activations.")
    ] = False,
    corpus: CorpusIfAny = None,
    budget: Annotated[int, typer.Option(help="Forward at most this many tokens, over all passes.", min=1)] = 600_000,
    bands: Annotated[int, typer.Option(help="Split the layers into this many groups of neighbours.", min=1)] = 10,
    as_json: JsonOption = False,
) -> int:
    """Show which tensors and layers cause the KL.

    Each part is measured twice: restored to the reference while the rest stays quantized, and quantized alone.
    With --engine it shows how much of the KL the serving engine adds to the checkpoint's own.
    """
    from q36eval.app.cli.progress import ConsoleProgress
    from q36eval.kl.corpus import corpus_sha256
    from q36eval.run.attribution import Plan, record
    from q36eval.run.attribution import attribute as run
    from q36eval.run.materials import corpus_of

    paths = Paths.default()
    chosen = family_of(family, paths, branch, reference, notify=note)
    target, base = resolve(branch, chosen, paths, note), resolve_reference(reference, None, chosen, paths)
    show_targets([target], base)
    assert base is not None, "without a pack it is on this machine"
    suite, corpus = texts_of(chosen, suite, corpus, paths)
    if engine.kind == IN_PROCESS and engine.workers is not None:
        raise UsageError("option-conflict", "attribute runs in one process; remove --workers.")
    plan = Plan(
        branch=target.folder,
        reference=base.folder,
        documents=corpus_of(suite, corpus, paths)[1],
        budget=budget,
        engine=engine,
        bands=bands,
        weights_only=weights_only,
    )
    if engine.kind != IN_PROCESS:
        return _tell_apart(plan, chosen.name, target.name, paths, as_json)
    history = open_history(paths, writing=True)
    with ConsoleProgress() as progress:
        attribution = run(plan, progress)
    run_id = record(attribution, chosen.name, target.name, corpus_sha256(plan.documents), history, paths)
    if as_json:
        body = json.loads(attribution.model_dump_json(exclude={"blames": {"__all__": {"clusters"}}}))
        print_json({"run": run_id, "branch": target.name, **body})
    elif not Quiet.wanted:
        _print(attribution, branch_title(chosen.name, target.name))
    return 0


def _tell_apart(plan: "Plan", family: str, branch: str, paths: Paths, as_json: bool) -> int:
    from q36eval.app.cli.progress import ConsoleProgress
    from q36eval.kl.corpus import corpus_sha256
    from q36eval.run.serving_error import record, tell_apart

    history = open_history(paths, writing=True)
    with ConsoleProgress() as progress:
        told = tell_apart(plan, progress)
    error = told.error
    run_id = record(told, family, branch, corpus_sha256(plan.documents), history, paths)
    if as_json:
        without: dict[str, Any] = {name: {"clusters"} for name in ("checkpoint", "serving", "whole", "floor")}
        body = json.loads(error.model_dump_json(exclude=without | {"paired": True}))
        print_json({"run": run_id, "branch": branch, "at_fault": error.at_fault, **body})
    elif not Quiet.wanted:
        _print_serving_error(error, branch_title(family, branch))
    return 0


def _print(attribution: "Attribution", title: str) -> None:
    interval = attribution.kl_interval
    parts: list[RenderableType] = [
        f"{title}: KL {attribution.kl:.4g} [{interval.lower:.4g}, {interval.upper:.4g}] nats/token over "
        f"{attribution.documents} documents, {attribution.tokens:,} tokens ({attribution.tokens_forwarded:,} forwarded)"
    ]
    for kind, heading in (("class", "class of tensors"), ("layers", "layers")):
        rows = []
        for blame in ranked(attribution, kind):
            alone = next(b for b in attribution.blames if (b.suspect, b.direction) == (blame.suspect, "alone"))
            rows.append((blame.suspect, *_cells(blame), *_cells(alone)))
        if rows:
            parts.append(plain_table((heading, "restored, KL falls", "share", "alone, KL is", "share"), rows, right=()))
    if attribution.identical:
        parts.append(f"identical to the reference: {', '.join(attribution.identical)}")
    print_parts(parts)


def ranked(attribution: "Attribution", kind: str) -> "list[Blame]":
    """The suspects of one kind, the most helpful restoration first."""
    mine = [blame for blame in attribution.blames if blame.kind == kind and blame.direction == "restored"]
    return sorted(mine, key=lambda blame: -blame.nats)


def _cells(blame: "Blame") -> tuple[str, str]:
    share = blame.share_interval
    return f"{blame.nats:.3g}", f"{blame.share:.0%} [{share.lower:.0%}, {share.upper:.0%}]"


def _print_serving_error(error: "ServingError", title: str) -> None:
    """A table of four divergences, and one sentence on which is at fault."""
    from rich.table import Table
    from rich.text import Text

    from q36eval.gate.fault_layer import ARITHMETICS, CONCLUSIONS

    table = Table("KL, nats/token", "", "95 %", box=None, padding=(0, 1))
    for name, layer in _layers(error):
        bounds = f"[{layer.interval.lower:.3g}, {layer.interval.upper:.3g}]" if layer else ""
        table.add_row(Text(name), Text(f"{layer.kl:.3g}" if layer else "not measured"), Text(bounds))
    heading = f"{title}: {error.documents} documents, {error.tokens:,} tokens"
    print_parts([heading, table, CONCLUSIONS[error.at_fault], ARITHMETICS[error.arithmetic]])


def _layers(error: "ServingError") -> "list[tuple[str, LayerError | None]]":
    return [
        ("checkpoint: reference against the branch decoded here", error.checkpoint),
        (f"engine: the branch decoded here against {error.engine}", error.serving),
        (f"both: reference against the branch by {error.engine}", error.whole),
        (f"floor: reference here against the reference by {error.engine}", error.floor),
    ]
