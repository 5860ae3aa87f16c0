"""The gates of the same deployment by the same criteria in history, and those that use the same answers."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from q36eval.engines import repeats_itself
from q36eval.files import json_sha256
from q36eval.gate import EarlierGate, Policy, Tried
from q36eval.gate.attempts import judged_content
from q36eval.history.records import RunRecord, RunState
from q36eval.history.store import History
from q36eval.records import DeploymentIdentity

CIRCUMSTANCES = frozenset({"numerics", "code", "device", "machine", "kernels", "batch_rows"})
"""Settings of the computation: gating the same deployment with others is another attempt."""


def tried_before(history: History, run: RunRecord) -> Tried | None:
    """The gates of the run's deployment by the criteria of its policy; None of a run that has neither yet."""
    if run.identity is None or run.policy is None:
        return None
    mine = _content(run.policy)
    gates = [
        gate
        for gate in history.gates_of(run.identity.checkpoint_sha256)
        if gate.id != run.id
        and gate.identity is not None
        and _tried(gate.identity) == _tried(run.identity)
        and gate.policy is not None
        and _content(gate.policy) == mine
    ]
    earlier = [_earlier(gate, run) for gate in gates if gate.state is RunState.FINISHED]
    return Tried(
        earlier=tuple(sorted(earlier, key=lambda gate: (gate.finished, gate.run_id))),
        unfinished=tuple(gate.id for gate in gates if gate.state is not RunState.FINISHED),
        answers=_answers(run, run.identity),
    )


def _earlier(gate: RunRecord, run: RunRecord) -> EarlierGate:
    assert gate.identity is not None, "it is a gate of that checkpoint"
    assert gate.finished is not None, "it is finished"
    assert gate.verdict is not None, "it has one where it is finished"
    others = {probe for probe in {*gate.suites, *run.suites} if gate.suites.get(probe) != run.suites.get(probe)}
    could_pass = set(gate.suites) >= set(run.suites)  # a gate without one of the probes was not an attempt at a PASS
    whose = gate if could_pass else run
    return EarlierGate(
        run_id=gate.id,
        finished=gate.finished,
        verdict=gate.verdict,
        answers=_answers(whose, whose.identity or gate.identity),
        other_suites=tuple(sorted(others)),
    )


def _tried(identity: DeploymentIdentity) -> dict[str, Any]:
    """The gated checkpoint: another version, device or batch size does not make it another one."""
    fields = identity.model_dump(mode="json", exclude={"engine_version"})
    fields["settings"] = {name: value for name, value in identity.settings.items() if name not in CIRCUMSTANCES}
    return fields


def _answers(run: RunRecord, identity: DeploymentIdentity) -> str:
    """The identifier of a gate's answers: over its evaluated items if it is deterministic, else the run's id."""
    if not repeats_itself(identity):
        return run.id
    evaluated = [identity.model_dump(mode="json"), dict(run.suites), run.provenance.get("max_items", "all")]
    return json_sha256(evaluated)[:16]


def _content(policy: Mapping[str, Any]) -> Any:
    """The deciding content of a stored policy; all of it if this version cannot read it."""
    try:
        return judged_content(Policy.model_validate(policy))
    except ValidationError:
        return dict(policy)
