"""What only a served model shows, put together: an endpoint opened, asked, and judged by the probe's own criteria.

Without a reference it stands alone (`q36eval served`); in a gate it is one more probe beside the others.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from q36eval.checkpoints.opened import opened_once
from q36eval.config import Family
from q36eval.engines import EngineOptions
from q36eval.engines.openai.deployment import OPENAI
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.errors import EngineError, UsageError
from q36eval.gate import Criterion, GateReport, Margin, Policy, decide
from q36eval.probes import Progress, Sink
from q36eval.records import Measurement, ProbeFailure, ProbeName
from q36eval.served.declared import Plan
from q36eval.served.probe import measure_served

ENDPOINTS = "endpoints"
"""The slice of what two endpoints of the same weights differ in."""


REJECTED, BY_PROMPT = "rejected_drafts", "rejected_drafts_by_prompt"
CRITERIA_OF_DRAFTS = {
    REJECTED: ("served-drafts", "Server: draft tokens rejected"),
    BY_PROMPT: ("served-drafts-against", "Server: draft tokens rejected, against the second server"),
}
MORE_REJECTED = Margin(
    kind="max_increase",
    value=0.05,
    source="ours; at an acceptance of 80 % and three guesses, 5 % fewer cost 6 % of the tokens of each step",
)
"""What a server may reject more than the second one."""
LEAST_DRAFTED = 16
"""Draft tokens, or prompts of which both servers drafted some; 30 prompts are asked for besides."""


@dataclass(frozen=True)
class ServedRequest:
    """Which endpoint is asked how much. `against` is the address of a second one of the same weights."""

    folder: Path
    family: Family
    engine: EngineOptions
    plan: Plan = field(default_factory=Plan)
    against: str | None = None


@dataclass(frozen=True)
class ServedFigures:
    """What was measured of `server`, and what could not be."""

    server: str
    measurements: tuple[Measurement, ...]
    failures: tuple[ProbeFailure, ...]


def measure_endpoint(request: ServedRequest, progress: Progress) -> ServedFigures:
    """Every differential. An engine that dies on the way keeps what was measured, and says what it was asked then.

    Raises:
        UsageError: no address, no such model, another tokenizer, or a branch whose prompts cannot be written.
        EngineError: it does not answer at all.
    """
    measurements, failures = list[Measurement](), list[ProbeFailure]()
    with opened_once() as folders:
        endpoint = Endpoint.load(request.engine.of(request.folder))
        try:
            other = None if request.against is None else _second(request, request.against)
            if other is not None and other.server == endpoint.server and other.server.started is not None:
                raise UsageError("--against names the server that is judged; give one that was started otherwise.")
            ask_served(endpoint, request, progress, measurements.append, failures.append, other)
        finally:
            endpoint.close()
        folders.verify()
    return ServedFigures(endpoint.name, tuple(measurements), tuple(failures))


def measure_served_branch(request: ServedRequest, sink: Sink, progress: Progress) -> list[Measurement]:
    """The probe in a gate: every figure is written at once, and why any is missing.

    Raises:
        UsageError, EngineError: as `Endpoint.load`.
    """
    if request.engine.kind != OPENAI:
        reason = f"the engine {request.engine.kind} is no endpoint; gate the branch as it is served (--engine openai)"
        sink.add_failure(ProbeFailure(probe=ProbeName.SERVED, reason=reason, kind="skipped"))
        return []
    figures = list[Measurement]()

    def keep(measurement: Measurement) -> None:
        sink.add_measurement(measurement)
        figures.append(measurement)

    endpoint = Endpoint.load(request.engine.of(request.folder))
    try:
        ask_served(endpoint, request, progress, keep, sink.add_failure)
    finally:
        endpoint.close()
    return figures


def ask_served(
    endpoint: Endpoint,
    request: ServedRequest,
    progress: Progress,
    measured: Callable[[Measurement], None],
    failed: Callable[[ProbeFailure], None],
    other: Endpoint | None = None,
) -> None:
    """Hand out every figure as it comes; trouble of the engine is a probe that crashed, never a wrong answer."""
    try:
        for figure in measure_served(endpoint, request.family, request.plan, progress, other):
            if isinstance(figure, Measurement):
                measured(figure)
            else:
                failed(figure)
    except EngineError as error:
        failed(ProbeFailure(probe=ProbeName.SERVED, reason=str(error), kind="crashed"))


def _second(request: ServedRequest, address: str) -> Endpoint:
    """The endpoint that the first is held against; its only model, or the one of the same name.

    Raises:
        UsageError, EngineError: as `Endpoint.load`.
    """
    options = replace(request.engine, base_url=address)
    try:
        return Endpoint.load(options.of(request.folder))
    except UsageError:
        if options.served_model is None:
            raise
        return Endpoint.load(replace(options, served_model=None).of(request.folder))


def judged_alone(
    policy: Policy, figures: ServedFigures, *, against: bool, least_acceptance: float | None = None
) -> GateReport:
    """The verdict by the policy's criteria of the probe `served` alone.

    With a second endpoint what the two differ in is one more criterion, with the margin of concurrent requests; and
    where both draft, how much more the first rejects. With `least_acceptance` the share of draft tokens that is
    accepted is one too: NOT MEASURED of a server that drafts nothing, or does not tell.

    Raises:
        UsageError: the policy has no such criterion.
    """
    criteria = [criterion for criterion in policy.criteria if criterion.probe is ProbeName.SERVED]
    if not criteria:
        raise UsageError(f"The policy {policy.name} has no criterion of the probe served; name one that has (served).")
    if against and all(criterion.slice != ENDPOINTS for criterion in criteria):
        criteria.append(_between_endpoints(criteria))
    if against and any(each.metric == BY_PROMPT for each in figures.measurements):
        criteria.append(_of_drafts(criteria[0], BY_PROMPT, MORE_REJECTED))
    if least_acceptance is not None:
        floor = Margin(kind="max_value", value=1.0 - least_acceptance, source="the floor named by --draft-acceptance")
        criteria.append(_of_drafts(criteria[0], REJECTED, floor))
    alone = policy.model_copy(update={"criteria": tuple(criteria)})
    return decide(alone, figures.measurements, failures=figures.failures)


def _of_drafts(like: Criterion, metric: str, margin: Margin) -> Criterion:
    """A blocking criterion in the lanes of another."""
    name, title = CRITERIA_OF_DRAFTS[metric]
    return Criterion(
        id=name, title=title, probe=ProbeName.SERVED, metric=metric, margin=margin, lanes=like.lanes,
        min_scored=LEAST_DRAFTED,
    )  # fmt: skip


def _between_endpoints(criteria: list[Criterion]) -> Criterion:
    like = next((each for each in criteria if each.metric == "answer_differences"), None)
    if like is None:
        raise UsageError("The policy has no criterion of answer_differences, by whose margin two endpoints are judged.")
    of = {"id": "served-endpoints", "title": "Server: two endpoints of the same weights", "slice": ENDPOINTS}
    return like.model_copy(update=of)
