"""Next steps after a verdict: commands, the most useful first."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from q36eval.chat.declared_template import recorded_template
from q36eval.config.project import names_a_program
from q36eval.errors import ExitCode
from q36eval.gate.report import CriterionResult, CriterionVerdict, GateReport, Waiver
from q36eval.inert_text import plain
from q36eval.provenance import OPTIONS
from q36eval.records import ProbeName, Verdict
from q36eval.reports.story import (
    decided_by,
    no_release_text,
    stopped_early,
    waits_for_signature,
)

if TYPE_CHECKING:
    from q36eval.history.records import RunRecord

DEFAULT_FAMILY = "sandbox"

CONFIGURATION, INTEGRITY = "configuration_differences", "integrity_faults"
"""The weights' metric that is not about tensors, and the one after which no model can be loaded."""

_SAFE = re.compile(r"[\w./][\w ./@+,=-]*", re.ASCII)
"""Commands appear in a terminal, in Markdown code and in HTML: nothing in them needs escaping."""

_SECRET = re.compile("[^=]*(token|key|secret|password)", re.IGNORECASE)
_COMPUTED_ON = re.compile(r"\w+(:\d+)?", re.ASCII)
"""A device or a type."""


@dataclass(frozen=True)
class NextStep:
    """A command to copy, and its result."""

    command: str
    why: str


@dataclass(frozen=True)
class Since:
    """People's actions on a run since its decision: whether it is the blessed one, and who signed it.

    `signed_by` are those whose signatures its decision does not count yet.
    """

    blessed: bool = False
    signed_by: tuple[str, ...] = ()


NOTHING_SINCE = Since()


PAGES = "q36eval ui"
"""The command that opens the pages: no next step on one of them."""
MOST_PROMPTS = 128
"""Of one kind: the shipped canaries have 130 with tools, for the family that has learnt least."""
WATCHED = "watch_incidents"
"""The metric of a watched deployment: the next round is automatic."""


UNABLE = {"reference-fails", "too-few-scored"}
"""The codes of a criterion that the reference cannot do; other prompts may change that."""
AT_FAULT = "shows whether the checkpoint or the engine is at fault"


def next_steps(
    report: GateReport, run: "RunRecord | None" = None, since: Since = NOTHING_SINCE
) -> tuple[NextStep, ...]:
    """At most three. Without a run there is nothing to name, so none."""
    return () if run is None else tuple(_steps(report, run, since))[:3]


def _steps(report: GateReport, run: "RunRecord", since: Since) -> Iterator[NextStep]:
    if report.of_server_alone:
        yield _of_server(report, run)
        return
    if since.signed_by and waits_for_signature(report):
        yield NextStep(_decide_again(run), f"decides it with the signature of {', '.join(since.signed_by)}")
    elif report.awaiting_sign_off:
        yield NextStep(f"q36eval review sign-off {run.id} --owner NAME --reason WHY", "a reviewer signs this report")
    if report.verdict is Verdict.FAIL:
        yield from _after_fail(report, run)
    elif report.exit_code == ExitCode.NOT_MEASURED:
        yield from _unmeasured(report, run)
    elif report.nothing_found:
        why = "a pre-check approves no release; this gate can"
        yield NextStep(f"{_gate(run)} --suite release", why)
    elif report.verdict is Verdict.INCONCLUSIVE:
        yield from _after_inconclusive(report, run, since)
    else:
        lapses = lapsing(report)
        if lapses is not None:
            why = f"before {lapses.expires} is over, when the waiver by {lapses.owner} lapses"
            yield NextStep(_gate(run), why)
        ships = no_release_text(report, run) is None
        if not ships:
            why = "judges by the family's policy and reference whether it may ship"
            yield NextStep(_gate(run), why)
        if since.blessed:
            yield NextStep(f"q36eval drift {_in_history(run)}", "this run is blessed: shows what changed since")
        else:
            why = "accept it as the baseline for drift"
            yield NextStep(f"q36eval review bless {run.id} --owner NAME --reason WHY", why)
        if ships:
            yield NextStep(f"q36eval report {run.id} --format card", "the figures for its model card")


def _unmeasured(report: GateReport, run: "RunRecord") -> Iterator[NextStep]:
    broken = any(each.infrastructure and each.verdict is CriterionVerdict.NOT_MEASURED for each in report.criteria)
    codes = {each.code for each in report.criteria if each.verdict is CriterionVerdict.NOT_JUDGED}
    unable = any(lane.verdict is Verdict.NOT_JUDGED for lane in report.lanes) and bool(codes & UNABLE)
    if broken or not unable:
        yield NextStep(_gate(run), "measure again once its reasons are mended")
    if unable:
        why = "judges by your own prompts: the original fails too many of these"
        yield NextStep(f"{_gate(run)} --canaries DIR --policy FILE", why)
    if run.identity is not None and run.identity.engine == "openai":
        yield NextStep(f"q36eval gate {branch_option(run)}", "measures in this process what the server does not show")


def _of_server(report: GateReport, run: "RunRecord") -> NextStep:
    """The next step after the result of an endpoint alone, which says nothing about the weights."""
    branch = branch_option(run)
    if any(result.metric == WATCHED for result in report.criteria):
        if report.verdict is Verdict.FAIL:
            return NextStep("q36eval gate --branch BRANCH --engine openai --base-url URL", "judges what is served now")
        return NextStep("q36eval history list", "shows the rounds before and after")
    if report.verdict is Verdict.PASS:
        why = "judges whether it may ship, against the reference"
        return NextStep(f"q36eval gate {branch} --engine openai --base-url URL", why)
    asked = run.provenance.get("served", {})
    against = " --against URL" if "second_endpoint" in asked else ""
    if asked.get("items", MOST_PROMPTS) < MOST_PROMPTS and _undecided_alone(report):
        why = "evaluates more prompts: these did not decide"
        more = min(2 * asked["items"], MOST_PROMPTS)
        return NextStep(f"q36eval served {branch} --base-url URL{against} --items {more}", why)
    why = "repeat after a fix of the server" if report.verdict is Verdict.FAIL else "repeat later"
    return NextStep(f"q36eval served {branch} --base-url URL{against}", why)


def _undecided_alone(report: GateReport) -> bool:
    """Whether it is INCONCLUSIVE, and all that keeps it from PASS was measured."""
    kept_from = [
        each for each in report.criteria if each.tier == "blocking" and each.verdict is not CriterionVerdict.PASS
    ]
    open_ones = [each for each in kept_from if each.verdict is CriterionVerdict.INCONCLUSIVE]
    return report.verdict is Verdict.INCONCLUSIVE and bool(kept_from) and kept_from == open_ones


def _after_fail(report: GateReport, run: "RunRecord") -> Iterator[NextStep]:
    failed = [result for result in decided_by(report) if result.verdict is CriterionVerdict.FAIL]
    probes = {result.probe for result in failed}
    metrics = {result.metric for result in failed if result.probe is ProbeName.WEIGHTS}
    if metrics:
        what = "entries and files" if metrics == {CONFIGURATION} else "tensors"
        yield NextStep(f"q36eval inspect {_checkpoint(run)}", f"names the {what} at fault")
        if CONFIGURATION in metrics:
            yield from _declaring(run)
    if probes - {ProbeName.WEIGHTS}:
        yield NextStep(PAGES, "shows its answers next to the reference's")
    packed = "reference_pack" in run.provenance.get(OPTIONS, ())  # a pack holds answers, not weights
    if probes & {ProbeName.KL, ProbeName.EVALS, ProbeName.CANARIES} and not packed:
        what = AT_FAULT if _engine(run) else "shows which tensors cost the quality"
        yield NextStep(f"q36eval attribute {branch_option(run)}{_engine(run)}{_arguments(run)}", what)
    if stopped_early(report) and INTEGRITY not in metrics:  # else nothing more can be evaluated
        can = bool(failed) and all(_may_be_waived(result, run) for result in failed)
        why = "a waiver needs the full record, and" if can else "for the full record:"
        yield NextStep(full_record(run), f"{why} this gate stopped when it had failed")
    elif len(failed) == 1 and _may_be_waived(failed[0], run):
        wanted = f"--criterion {_word(failed[0].id, 'ID')} --owner NAME --reason WHY --expires YYYY-MM-DD"
        yield NextStep(f"q36eval review waive {_in_history(run)} {wanted}", "a reviewer's written exception")


def _declaring(run: "RunRecord") -> Iterator[NextStep]:
    """The declaration of an intentionally different chat template; nothing if it is equal or already declared."""
    if run.identity is None or run.reference_identity is None or recorded_template(run.provenance) is not None:
        return
    sha256 = run.identity.chat_template_sha256
    if sha256 != run.reference_identity.chat_template_sha256:
        line = f"chat_template: {{sha256: {sha256}, source: WHY}}"
        why = f"if its chat template differs on purpose: first add to the branch in the family's file: {line}"
        yield NextStep(_gate(run), why)


def full_record(run: "RunRecord") -> str:
    """The command that evaluates everything of the run's branch, also what a certain verdict would leave out."""
    return f"{_gate(run)} --exhaustive"


def _may_be_waived(result: CriterionResult, run: "RunRecord") -> bool:
    """Whether the policy that judged the run lets a reviewer excuse it."""
    rules = (run.policy or {}).get("criteria", ())
    return any(rule.get("id") == result.id and rule.get("waivable", True) for rule in rules)


def lapsing(report: GateReport) -> Waiver | None:
    """The waiver that lapses first, of those that the verdict rests on."""
    waivers = [waiver for result in report.criteria for waiver in result.waived_by]
    return min(waivers, key=lambda waiver: (waiver.expires, waiver.owner), default=None)


def _decide_again(run: "RunRecord") -> str:
    return f"q36eval gate --resume {run.id} --require-sign-off"


def _after_inconclusive(report: GateReport, run: "RunRecord", since: Since) -> Iterator[NextStep]:
    if report.awaiting_sign_off and not report.decisive:
        return
    open_ = decided_by(report)
    if any(result.anomalous for result in open_):
        if not since.signed_by:
            signs = "a reviewer accepts the gain after finding its reason"
            yield NextStep(f"q36eval review sign-off {run.id} --owner NAME --reason WHY", signs)
            yield NextStep(_decide_again(run), "decides it again")
        open_ = tuple(result for result in open_ if not result.anomalous)
        if not open_:
            return
    unable = [result for result in open_ if _beyond_the_reference(result)]
    open_ = tuple(result for result in open_ if result not in unable)
    if any(result.verdict is CriterionVerdict.NOT_MEASURED for result in open_) or not (open_ or unable):
        missing = ", ".join(r.name for r in open_ if r.verdict is CriterionVerdict.NOT_MEASURED) or "everything"
        yield NextStep(_gate(run), f"with all probes: {missing} was not measured")
    if unable:
        named = ", ".join(result.name for result in unable)
        yield NextStep(PAGES, f"shows why the reference fails the items of {named}: a larger budget, or other items")
    if any(result.verdict is CriterionVerdict.INCONCLUSIVE for result in open_):
        if not _asked_whole(report, run):
            yield NextStep(f"{_gate(run)} --exhaustive", "evaluates every item of the suite")
        supplies = None if run.circumstances is None else run.circumstances.supplies
        of_canaries = any(result.probe is ProbeName.CANARIES for result in open_)
        if of_canaries and supplies is not None and supplies.draws is not None and supplies.draws < supplies.most_draws:
            draws = min(supplies.most_draws, 2 * supplies.draws)
            yield NextStep(f"{_gate(run)} --draws {draws}", "more draws of each canary family")
        if engine := _engine(run):
            yield NextStep(f"q36eval attribute {branch_option(run)}{engine}{_arguments(run)}", AT_FAULT)
        yield NextStep(f"{_gate(run)} --suite NAME", "a larger suite: more items narrow the interval")


def _beyond_the_reference(result: CriterionResult) -> bool:
    """Whether it was not measured because the reference cannot do it: a repeat would not change that."""
    competence = result.competence
    return result.verdict is CriterionVerdict.NOT_MEASURED and competence is not None and bool(competence.left_out)


def _asked_whole(report: GateReport, run: "RunRecord") -> bool:
    """Whether every item was evaluated, so that asking exhaustively asks nothing more."""
    whole = bool(report.stages) and all(stage.items >= stage.planned for stage in report.stages)
    return whole or run.provenance.get("exhaustive") is True


def branch_option(run: "RunRecord") -> str:
    """`--branch …` by which a command finds the run's branch again."""
    return f"--branch {_checkpoint(run)}"


def _engine(run: "RunRecord") -> str:
    """The option for the run's serving engine; empty for one in this process."""
    engine = "" if run.identity is None else run.identity.engine
    return {"vllm": " --engine vllm", "openai": " --engine openai --base-url URL"}.get(engine, "")


def _arguments(run: "RunRecord") -> str:
    """The run's device, KV cache and engine arguments, without which another engine would be judged."""
    kept = run.provenance.get(OPTIONS)
    if not isinstance(kept, dict) or run.imported is not None:
        return ""
    named = {name: str(kept[name]) for name in ("device", "kv_cache_dtype") if name in kept}
    words = [f" --{name.replace('_', '-')} {on}" for name, on in named.items() if _COMPUTED_ON.fullmatch(on)]
    shown = [each for each in kept.get("engine_arguments", ()) if not (names_a_program(each) or _SECRET.match(each))]
    return "".join([*words, *(f" --engine-arg {_word(each, 'NAME=VALUE')}" for each in shown)])


def _gate(run: "RunRecord") -> str:
    """The gate of the run's branch by the same engine."""
    return f"q36eval gate {branch_option(run)}{_engine(run)}{_arguments(run)}"


def _in_history(run: "RunRecord") -> str:
    """The same for a command that reads only history and has no reference option."""
    return branch_option(run).partition(" --reference")[0]


def _checkpoint(run: "RunRecord") -> str:
    """The branch as a shell reads it, with the options by which the run named its model."""
    kept = run.provenance.get(OPTIONS)
    if not isinstance(kept, dict) or run.imported is not None:  # an older run, or one of a single probe
        family = "" if run.family == DEFAULT_FAMILY else f" --family {_word(run.family, 'FILE')}"
        return f"{_word(run.branch, 'BRANCH')}{family}"
    branch, family = kept["branch"][0], kept["family"]
    words = [_word(branch, "BRANCH")]
    if family is not None and not branch.startswith(f"{family}/"):
        words.append(f"--family {_word(family, 'FILE')}")
    for name in ("reference", "reference_pack"):
        if name in kept:
            words.append(f"--{name.replace('_', '-')} {_word(kept[name], 'REFERENCE')}")
    return " ".join(words)


def _word(name: str, placeholder: str) -> str:
    """A name quoted for a shell; the placeholder for one that a format would have to escape, or that is an option."""
    safe = _SAFE.fullmatch(name) is not None and name == plain(name)
    return shlex.quote(name) if safe else placeholder
