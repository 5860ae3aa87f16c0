"""The faults of a served model, assembled: an endpoint opened and queried, each figure written as it arrives.

Without a reference it is a separate run (`q36eval served`); in a gate it is one more probe.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from q36eval.canaries.specification import for_family, load_specs
from q36eval.checkpoints import chat_template_sha256, checkpoint_sha256, tokenizer_sha256
from q36eval.config import Family
from q36eval.engines import EngineOptions, check_deployment
from q36eval.engines.openai.client import Address
from q36eval.engines.openai.deployment import OPENAI, identity_at, opened
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.errors import EngineError, UsageError
from q36eval.files import json_sha256
from q36eval.gate import Criterion, Margin, Policy, Stage, StageState
from q36eval.history import History
from q36eval.history.records import ASKED, SECOND_ENDPOINT
from q36eval.probes import Progress, Sink
from q36eval.records import DeploymentIdentity, Measurement, ProbeFailure, ProbeName
from q36eval.run.request import Request
from q36eval.served.declared_server import PROMPTS_A_CONVERSATION, SERVING_KL, Plan
from q36eval.served.probe import measure_served
from q36eval.served.same_server import are_one

ENDPOINTS = "endpoints"
"""The slice for the differences of two endpoints of the same weights."""
NO_ANSWER = "no answer"
"""The engine's version in the identity of a server that did not answer."""
SAME_SERVER = "--against names the server that is judged; give one that was started otherwise."
SAME_START = (
    "--against: both servers tell the same start and count no prompts, so they may be one; start one of them again."
)
MAYBE_ONE = "neither tells whether these are two servers"


LEAST_DRAFTED = 16
"""Draft tokens that the criterion needs (`min_scored`), in addition to 30 prompts."""


@dataclass(frozen=True)
class ServedRequest:
    """Which endpoint is queried, and how much. `against` is the address of a second one of the same weights."""

    folder: Path
    family: Family
    engine: EngineOptions
    plan: Plan = field(default_factory=Plan)
    against: str | None = None

    @classmethod
    def of(cls, request: Request) -> "ServedRequest":
        """The part of a request for an endpoint. Lower concurrency would hardly show faults of concurrent requests."""
        engine, plan = request.engine, request.served
        if engine.batch_rows is not None:
            plan = replace(plan, concurrency=max(plan.concurrency, engine.batch_rows))
        return cls(request.branch.folder, request.family, engine, plan, request.second_endpoint)


@dataclass
class ServedAlone:
    """A run that queries an endpoint and needs no reference. `stages` and `timings` (seconds) record its result."""

    request: Request
    history: History
    run_id: str
    sink: Sink
    progress: Progress
    stages: list[Stage] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)

    def measure(self) -> None:
        """Every differential; the identities of the deployments are written first.

        Raises:
            UsageError: no such model, another tokenizer, a branch whose prompts cannot be rendered, or the same server
                twice.
            EngineError: a server does not answer at all.
        """
        request = ServedRequest.of(self.request)
        started = time.monotonic()
        try:
            endpoint, identity = _identified(request.engine, request.folder)
        except EngineError:
            self.history.update_run(self.run_id, identity=_unanswered(request.folder))
            raise
        other = None
        try:
            self.history.update_run(self.run_id, identity=identity)
            asked_for = asked_of(request)
            if request.against is not None:
                other, second = _second(request, request.against)
                request = _told_apart(request, endpoint, other)
                asked_for[SECOND_ENDPOINT] = second.model_dump(mode="json")
            made = self.history.get_run(self.run_id).provenance
            self.history.update_run(self.run_id, provenance=made | {ASKED: asked_for})
            figures = ask_served(endpoint, request, self.sink, self.progress, other)
        finally:
            endpoint.close()
            if other is not None:
                other.close()
        self.timings[ProbeName.SERVED.value] = time.monotonic() - started
        self.stages.append(stage_of(figures))


def measure_served_branch(request: ServedRequest, sink: Sink, progress: Progress) -> list[Measurement]:
    """The probe in a gate: every figure is written immediately, or the reason why it is missing.

    Raises:
        UsageError, EngineError: as `Endpoint.load`.
    """
    if request.engine.kind != OPENAI:
        reason = f"the engine {request.engine.kind} is not a server; gate the served branch with --engine openai"
        sink.add_failure(ProbeFailure(probe=ProbeName.SERVED, reason=reason, kind="skipped"))
        return []
    endpoint = Endpoint.load(request.engine.of(request.folder))
    try:
        return ask_served(endpoint, request, sink, progress)
    finally:
        endpoint.close()


def ask_served(
    endpoint: Endpoint, request: ServedRequest, sink: Sink, progress: Progress, other: Endpoint | None = None
) -> list[Measurement]:
    """Write every figure as it arrives; an engine error is a crashed probe, never a wrong answer."""
    figures = list[Measurement]()
    try:
        for figure in measure_served(endpoint, request.family, request.plan, progress, other):
            if isinstance(figure, Measurement):
                sink.add_measurement(figure)
                figures.append(figure)
            else:
                sink.add_failure(figure)
    except EngineError as error:
        sink.add_failure(ProbeFailure(probe=ProbeName.SERVED, reason=str(error), kind="crashed"))
    return figures


def stage_of(figures: Sequence[Measurement]) -> Stage:
    """The probe as a stage of a run, from its measurements."""
    items = max((measurement.counts.total for measurement in figures), default=0)
    state = StageState.MEASURED if figures else StageState.NOT_EVALUATED
    return Stage(name=ProbeName.SERVED.value, state=state, items=items, planned=items)


def asked_of(request: ServedRequest) -> dict[str, Any]:
    """The number of queries, as stored with a run."""
    return {name: value for name, value in asdict(request.plan).items() if value != ""}


def check_alone(request: Request) -> None:
    """Refuse a bad request before a run is begun; an unreachable server is reported by the run.

    Raises:
        UsageError: no address, the same one twice, no such model, or a tokenizer that is not the branch's.
    """
    second = request.second_endpoint
    if second is not None and Address.named(second).base == Address.named(request.engine.base_url).base:
        raise UsageError("same-server", SAME_SERVER)
    with suppress(EngineError):
        check_deployment(request.deployment)


OF_ALL_PROMPTS = (
    *("answer_differences", "prompt_differences", "stream_faults", "greedy_faults", "call_failure_rate"),
    "parser_faults",
)
"""Metrics with at most one item per prompt."""


def too_few_asked(request: Request) -> str:
    """A warning before any query if too few prompts leave criteria NOT MEASURED; else empty."""
    policy, plan = request.policy, request.served
    if policy is None:
        return ""
    required = [
        each.min_scored * (PROMPTS_A_CONVERSATION if each.slice == "conversation" else 1)
        for each in policy.criteria
        if each.tier == "blocking"
        and each.metric in OF_ALL_PROMPTS
        and each.min_scored > (plan.conversations if each.slice == "conversation" else plan.items)
    ]
    if not required:
        return ""
    return (
        f"With --items {plan.items} this run cannot PASS: the policy {policy.name} requires {max(required)}; "
        f"ask --items {max(Plan.items, *required)}."
    )


def served_suite(request: Request) -> dict[str, str]:
    """Hash of an endpoint's queries, by the probe's name: their number, and the canaries behind the prompts.

    Empty if it is not queried.
    """
    if ProbeName.SERVED not in request.probes:
        return {}
    specs = for_family(load_specs(skills=request.family.skills), request.family)
    amounts = {name: value for name, value in asked_of(ServedRequest.of(request)).items() if name != "difference"}
    return {ProbeName.SERVED.value: json_sha256([amounts, [spec.model_dump(mode="json") for spec in specs]])}


def _identified(options: EngineOptions, folder: Path) -> tuple[Endpoint, DeploymentIdentity]:
    """An endpoint and its identity. Raises as `Endpoint.load`."""
    settings = options.of(folder)
    there = opened(settings, Endpoint.limits)
    return Endpoint(there, settings), identity_at(there, settings)


def _unanswered(folder: Path) -> DeploymentIdentity:
    """The identity of a server that does not report one, from the branch."""
    return DeploymentIdentity(
        checkpoint_sha256=checkpoint_sha256(folder),
        tokenizer_sha256=tokenizer_sha256(folder),
        chat_template_sha256=chat_template_sha256(folder),
        engine=OPENAI,
        engine_version=NO_ANSWER,
        kv_cache_dtype="as served",
    )


def _second(request: ServedRequest, address: str) -> tuple[Endpoint, DeploymentIdentity]:
    """The second endpoint for the comparison; its only model, or the one of the same name.

    Raises:
        UsageError, EngineError: as `Endpoint.load`.
    """
    options = replace(request.engine, base_url=address)
    try:
        return _identified(options, request.folder)
    except UsageError:
        if options.served_model is None:
            raise
        return _identified(replace(options, served_model=None), request.folder)


def _told_apart(request: ServedRequest, endpoint: Endpoint, other: Endpoint) -> ServedRequest:
    """The request, with a note if the two addresses may be one server.

    Raises:
        UsageError: they are one, or may be, by their start time.
        EngineError: one does not answer.
    """
    one = are_one(endpoint, other)
    if one:
        raise UsageError("same-server", SAME_SERVER)
    if one is False:
        return request
    if endpoint.server.started is not None and endpoint.server.started == other.server.started:
        raise UsageError("same-server", SAME_START)
    difference = "; ".join(filter(None, (request.plan.difference, MAYBE_ONE)))
    return replace(request, plan=replace(request.plan, difference=difference))


def alone(policy: Policy, *, against: bool, least_acceptance: float | None = None) -> Policy:
    """The criteria of the probe `served` alone, for judging an endpoint without a reference.

    With a second endpoint the difference between the two is another criterion, with the margin of concurrent requests.
    With `least_acceptance` the acceptance rate of draft tokens is one, too: NOT MEASURED if a server does not report
    it. Only a gate judges the serving error (`serving_kl`), because it has the decoded branch.

    Raises:
        UsageError: the policy has no such criterion.
    """
    criteria = [each for each in policy.criteria if each.probe is ProbeName.SERVED and each.metric != SERVING_KL]
    if not criteria:
        raise UsageError(
            "policy-without-served",
            f"The policy {policy.name} has no criterion of the probe served; name one that has (served).",
        )
    if against and all(criterion.slice != ENDPOINTS for criterion in criteria):
        criteria.append(_between_endpoints(criteria))
    if least_acceptance is not None:
        floor = Margin(kind="max_value", value=1.0 - least_acceptance, source="the floor named by --draft-acceptance")
        criteria.append(
            Criterion(
                id="served-drafts",
                title="Server: draft tokens rejected",
                probe=ProbeName.SERVED,
                metric="rejected_drafts",
                margin=floor,
                lanes=criteria[0].lanes,
                min_scored=LEAST_DRAFTED,
            )
        )
    return policy.model_copy(update={"criteria": tuple(criteria)})


def _between_endpoints(criteria: list[Criterion]) -> Criterion:
    like = next((each for each in criteria if each.metric == "answer_differences"), None)
    if like is None:
        raise UsageError(
            "policy-without-served",
            "The policy has no criterion of answer_differences, by whose margin two endpoints are judged.",
        )
    of = {"id": "served-endpoints", "title": "Server: two endpoints of the same weights", "slice": ENDPOINTS}
    return like.model_copy(update=of)
