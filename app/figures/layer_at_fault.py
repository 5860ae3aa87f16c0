"""Whether the checkpoint or the engine is at fault for what a gate found, by the figures of `attribute --engine`."""

import shlex
from typing import TYPE_CHECKING

from q36eval.engines.base import IN_PROCESS
from q36eval.gate.fault import ARITHMETICS, EXCESS, SERVING, Arithmetic, Fault, fault_of
from q36eval.records import Measurement, Verdict

if TYPE_CHECKING:
    from q36eval.history import History
    from q36eval.history.records import RunRecord, SeriesRun

AT_FAULT: dict[Fault, str] = {
    "checkpoint": "The checkpoint is at fault: it costs more than {engine} adds.",
    "engine": "The engine is at fault: {engine} adds more than the checkpoint costs.",
    "alike": "Checkpoint and engine ({engine}) are not told apart: the texts do not show which of them costs more.",
    "none": "Neither is at fault: the branch by {engine} is as near as two engines are on the reference itself.",
}
NOT_TOLD = "Not told apart whether the checkpoint or the engine is at fault: `{command}` does."


def layer_lines(history: "History", run: "RunRecord") -> tuple[str, ...]:
    """What is known of it, in sentences, the layer first; nothing of a PASS, nor of what nobody serves.

    Figures count where they are of the same checkpoint against the same reference, and, where the gate judged a served
    branch, by the same engine.
    """
    if run.report is None or run.identity is None or run.verdict is Verdict.PASS:
        return ()
    served = run.identity.engine if run.identity.engine != IN_PROCESS else None
    newest = _newest(history.series_runs(run.branch, run.family), run, served)
    if newest is not None:
        return _lines(newest, history.measurements(newest.id))
    if served is None:
        return ()
    command = f"q36eval attribute --branch {shlex.quote(run.branch)} --engine {served}"
    return (NOT_TOLD.format(command=command),)


def _newest(runs: "list[SeriesRun]", run: "RunRecord", served: str | None) -> "SeriesRun | None":
    """The newest figures (`series_runs` has the oldest first) of the deployments that the gate was about."""
    for each in reversed(runs):
        ours, theirs = (each.identity, each.reference_identity), (run.identity, run.reference_identity)
        if SERVING not in each.suites or any(one is None for one in (*ours, *theirs)):
            continue
        same = all(a.checkpoint_sha256 == b.checkpoint_sha256 for a, b in zip(ours, theirs, strict=True) if a and b)
        if same and ours[0] is not None and served in (None, ours[0].engine):
            return each
    return None


def _lines(told: "SeriesRun", measurements: list[Measurement]) -> tuple[str, ...]:
    by_layer = {m.slice.partition("/")[2]: m for m in measurements if m.metric == "attributed_kl"}
    whole, excess, floor = (by_layer.get(name) for name in ("whole", EXCESS, "floor"))
    if whole is None or excess is None:
        return ()
    engine = excess.slice.partition("/")[0]
    fault = fault_of(whole.effect_interval, None if floor is None else floor.effect_interval, excess.effect_interval)
    figures = ", ".join(
        f"{words} {_figure(by_layer[name])}"
        for name, words in (("checkpoint", "checkpoint"), ("serving", "engine"), ("whole", "both"), ("floor", "floor"))
        if name in by_layer
    )
    lines = [AT_FAULT[fault].format(engine=engine), f"KL in nats a token: {figures} (run {told.id})."]
    if excess.note in ARITHMETICS:
        lines.append(ARITHMETICS[_arithmetic(excess.note)])
    return tuple(lines)


def _figure(measurement: Measurement) -> str:
    interval = measurement.effect_interval
    return f"{measurement.value:.3g} [{interval.lower:.3g}, {interval.upper:.3g}]"


def _arithmetic(note: str) -> Arithmetic:
    return next(name for name in ARITHMETICS if name == note)
