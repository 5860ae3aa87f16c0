"""`q36eval branches`: what a family publishes."""

from typing import Annotated

import typer

from q36eval.app.cli.options import FamilyOption, JsonOption, print_json
from q36eval.app.cli.tables import print_parts
from q36eval.app.targets import declared_family
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
    chosen = declared_family(family, Paths.default())
    if name is not None:
        _describe(chosen, name, as_json)
        return
    if as_json:
        print_json(chosen.model_dump(mode="json"))
        return
    from rich.table import Table

    table = Table("branch", "scheme", "lanes", "source", title=f"{chosen.name} (reference: {chosen.reference})")
    for name, branch in chosen.branches.items():
        table.add_row(name, branch.scheme, ", ".join(branch.lanes), str(branch.source))
    print_parts([table])


def _describe(chosen: Family, name: str, as_json: bool) -> None:
    """The branch as the family's file describes it."""
    body = chosen.branch(name).model_dump(mode="json", exclude_defaults=not as_json)
    if as_json:
        print_json(body)
        return
    import yaml

    print(yaml.safe_dump({f"{chosen.name}/{name}": body}, sort_keys=False, allow_unicode=True, width=120), end="")
