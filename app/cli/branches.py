"""`q36eval branches`: what a family publishes."""

from typing import Annotated

import typer

from q36eval.app.cli.options import FamilyOption, JsonOption, print_json
from q36eval.app.targets import load_family
from q36eval.config import Family
from q36eval.config.paths import Paths


def branches(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[BRANCH]",
            help="Describe this branch; all are listed by default.",
        ),
    ] = None,
    family: FamilyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a family's branches, or describe one of them.

    One branch with its recipe, published figures and needs.
    """
    chosen = load_family(family, Paths.default())
    if name is not None:
        _describe(chosen, name, as_json)
        return
    if as_json:
        print_json(chosen.model_dump(mode="json"))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("branch", "scheme", "lanes", "source", title=f"{chosen.name} (reference: {chosen.reference})")
    for name, branch in chosen.branches.items():
        table.add_row(name, branch.scheme, ", ".join(branch.lanes), str(branch.source))
    Console().print(table)


def _describe(chosen: Family, name: str, as_json: bool) -> None:
    branch = chosen.branch(name)
    if as_json:
        print_json(branch.model_dump(mode="json"))
        return
    lines = [
        f"{chosen.name}/{name}: {branch.description}",
        f"  scheme   {branch.scheme}",
        f"  source   {branch.source}",
        f"  lanes    {', '.join(branch.lanes)}",
        f"  KV cache {', '.join(branch.kv_cache_dtypes)}",
    ]
    if branch.source.path is None:
        size = "its weights" if branch.size_gib is None else f"about {branch.size_gib:g} GiB of weights"
        lines.append(f"  needs    {size} on this machine; then: q36eval gate --family {chosen.name} --branch FOLDER")
    template = branch.chat_template
    facts = [
        *(("stores", f"{one.tensors}: {one.stored}", one.source) for one in branch.stores),
        *(("ships", ": ".join(filter(None, (one.part, one.stored, one.says))), one.source) for one in branch.ships),
        *([] if template is None else [("template", f"its own: {template.sha256}", template.source)]),
        *(("serving", f"{fact.what}: {fact.value}", fact.source) for fact in branch.serving),
        *(("figure", f"{figure.metric}: {figure.value}", figure.source) for figure in branch.figures),
    ]
    lines += [f"  {kind:<8} {text} ({source})" for kind, text, source in facts]
    lines += [f"  note     {note}" for note in branch.notes]
    print("\n".join(lines))
