"""`q36eval attribute`: which classes of tensors and which layers cost the KL."""

import json
from dataclasses import replace
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
from q36eval.app.targets import family_of, resolve
from q36eval.config.paths import Paths
from q36eval.engines import IN_PROCESS, EngineOptions
from q36eval.errors import UsageError
from q36eval.records import branch_title

if TYPE_CHECKING:
    from q36eval.kl.attribution import Attribution, Blame
    from q36eval.run.serving_error import ServingPlan


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
    from q36eval.run.serving_error import ServingPlan

    paths = Paths.default()
    chosen = family_of(family, paths, branch, reference, notify=note)
    target, base = resolve(branch, chosen, paths, note), resolve_reference(reference, None, chosen, paths)
    show_targets([target], base)
    assert base is not None, "without a pack it is on this machine"
    against = base.folder
    suite, corpus = texts_of(chosen, suite, corpus, paths)
    if engine.kind == IN_PROCESS and engine.workers is not None:
        raise UsageError("option-conflict", "Parts are exchanged in one process; leave --workers out.")
    if engine.kind != IN_PROCESS:
        serving = ServingPlan(
            branch=target.folder,
            reference=against,
            documents=corpus_of(suite, corpus, paths)[1],
            budget=budget,
            engine=engine,
            weights_only=weights_only,
        )
        return _tell_apart(serving, chosen.name, target.name, paths, as_json)
    if weights_only:
        engine = replace(engine, emulate_activations=False)
    plan = Plan(
        branch=target.folder,
        reference=against,
        documents=corpus_of(suite, corpus, paths)[1],
        budget=budget,
        bands=bands,
        engine=engine,
    )
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


def _tell_apart(plan: "ServingPlan", family: str, branch: str, paths: Paths, as_json: bool) -> int:
    from q36eval.app.cli.progress import ConsoleProgress
    from q36eval.app.cli.serving_report import print_serving_error
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
        print_serving_error(error, branch_title(family, branch))
    return 0


def _print(attribution: "Attribution", title: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from q36eval.app.cli.tables import plain_table

    console = Console()
    interval = attribution.kl_interval
    console.print(
        Text(
            f"{title}: KL {attribution.kl:.4g} [{interval.lower:.4g}, {interval.upper:.4g}] nats/token over "
            f"{attribution.documents} documents, {attribution.tokens:,} tokens "
            f"({attribution.tokens_forwarded:,} forwarded)"
        )
    )
    for kind, heading in (("class", "class of tensors"), ("layers", "layers")):
        rows = []
        for blame in ranked(attribution, kind):
            alone = next(b for b in attribution.blames if (b.suspect, b.direction) == (blame.suspect, "alone"))
            rows.append((blame.suspect, *_cells(blame), *_cells(alone)))
        if rows:
            console.print(
                plain_table((heading, "restored, KL falls", "share", "alone, KL is", "share"), rows, right=())
            )
    if attribution.identical:
        console.print(Text(f"identical to the reference: {', '.join(attribution.identical)}"))


def ranked(attribution: "Attribution", kind: str) -> "list[Blame]":
    """The suspects of one kind, the one whose restoration helps most first."""
    mine = [blame for blame in attribution.blames if blame.kind == kind and blame.direction == "restored"]
    return sorted(mine, key=lambda blame: -blame.nats)


def _cells(blame: "Blame") -> tuple[str, str]:
    share = blame.share_interval
    return f"{blame.nats:.3g}", f"{blame.share:.0%} [{share.lower:.0%}, {share.upper:.0%}]"
