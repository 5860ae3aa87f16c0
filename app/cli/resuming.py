"""The options of a gate as stored with its run: `gate --resume RUN` rebuilds the same request from them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.app.cli.options import given_options, open_history
from q36eval.app.names import shipped_families
from q36eval.app.targets import DerivedFamily, chosen_family
from q36eval.chat.declared_template import recorded_template
from q36eval.config import Family, Paths, Project
from q36eval.config.project import counted_from, names_a_program
from q36eval.hub_checkpoints import HubName
from q36eval.provenance import OPTIONS
from q36eval.run.request import Target, another_request

if TYPE_CHECKING:
    from q36eval.gate import Policy
    from q36eval.history import RunRecord

NOT_KEPT = ("branch", "family", "policy", "lane", "resume", "out", "plan", "as_json")
"""Parameters outside a run, or stored differently: its policy is complete, and limited to its lanes."""


def continue_with(context: Any) -> None:
    """Apply the options of the run to resume that the command line omits.

    Raises:
        UsageError: there is no such run.
    """
    from q36eval.history import RunState

    run = open_history().get_run(context.params["resume"])
    kept = {} if run.imported is not None else run.provenance.get(OPTIONS, {})  # an archive sets no options here
    shipped = [family.name for family in shipped_families(Paths.default())]
    begun = {"branch": [run.branch], "family": run.family if run.family in shipped else None} | kept
    begun["engine_arguments"] = [each for each in kept.get("engine_arguments", ()) if not names_a_program(each)]
    if run.state is RunState.FINISHED:  # it is decided again with the given options
        begun = {name: begun[name] for name in ("branch", "family", "reference") if name in begun}
    given = given_options(context)
    for parameter in context.command.params:
        if begun.get(parameter.name) and parameter.name not in given:
            context.params[parameter.name] = parameter.process_value(context, begun[parameter.name])


def kept_options(context: Any, family: Family, branch: Target, reference: Target | None) -> dict[str, Any]:
    """The options that differ from their defaults, as JSON values; names and paths are absolute, for use in any folder.

    An address with a password is left out.
    """
    kept: dict[str, Any] = {}
    for parameter in context.command.params:
        value = context.params.get(parameter.name)
        if parameter.name not in NOT_KEPT and value not in (None, (), [], parameter.default):
            several = isinstance(value, list | tuple)
            plain = value if isinstance(value, bool | int) else str(value)
            kept[parameter.name] = [str(each) for each in value] if several else plain
    if "@" in kept.get("base_url", ""):
        del kept["base_url"]
    kept |= named_branch(context.params["family"], family, branch)
    if "reference" in kept and reference is not None:
        kept["reference"] = _spelled(reference, family)
    return counted_from(Path.cwd(), kept)


def named_branch(named: str | None, family: Family, branch: Target) -> dict[str, Any]:
    """The options that find the branch and its family again; `named` is the command's own --family."""
    return counted_from(Path.cwd(), {"branch": [_spelled(branch, family)], "family": _family(named, family)})


def _spelled(target: Target, family: Family) -> str:
    """A name that refers to the same bytes later: the Hub's with its commit."""
    if target.name in family.branches:
        return f"{family.name}/{target.name}"
    on_hub = None if target.snapshot is None else HubName.parse(target.name)
    if on_hub is None or target.snapshot is None:
        return target.name
    return str(replace(on_hub, revision=target.snapshot.commit))


def _family(named: str | None, family: Family) -> str | None:
    """None for a derived family, which is derived again."""
    if named is not None or isinstance(family, DerivedFamily):
        return named
    of_project = chosen_family(None, Paths.default())
    return Project.here().family if of_project is not None and of_project.name == family.name else family.name


def resumed_names(run: "RunRecord", family: Family, branches: list[str]) -> list[str]:
    """The run's name of its branch, now possibly with its commit.

    Raises:
        UsageError: another branch or family than the run's, before a checkpoint is searched for. A finished run is
            decided again, which reports more.
    """
    begun = run.provenance.get(OPTIONS, {}).get("branch")
    same = run.family == family.name and branches in ([run.branch], begun)
    if run.state != "finished" and not same:
        raise another_request(run.id, run.branch)
    return [run.branch] if same else branches


def kept_policy(run: "RunRecord") -> "Policy | None":
    """The policy of a run's beginning, limited to its lanes; None for a run that only measures."""
    from q36eval.gate import Policy

    return None if run.policy is None else Policy.model_validate(run.policy)


def kept_template(run: "RunRecord") -> str | None:
    """The hash of the chat template that the project file declared when the run began."""
    declared = recorded_template(run.provenance)
    return declared.sha256 if declared is not None and declared.by == "the project file" else None
