"""The layer at fault for a gate's findings, checkpoint or engine, from the figures of `attribute --engine`."""

from typing import TYPE_CHECKING

from q36eval.engines.base import IN_PROCESS
from q36eval.gate.fault_layer import ARITHMETICS, EXCESS, SERVING, Fault, LayerAtFault, LayerFigure, fault_of
from q36eval.records import Measurement, ProbeName, Verdict

if TYPE_CHECKING:
    from q36eval.history import History
    from q36eval.history.records import RunRecord, SeriesRun

WORDS = {"checkpoint": "checkpoint", "serving": "engine", "whole": "both", "floor": "floor"}
"""The layers' figures as people read them, in this order."""

AT_FAULT: dict[Fault, str] = {
    "checkpoint": "The checkpoint is at fault: it costs more than {engine} adds.",
    "engine": "The engine is at fault: {engine} adds more than the checkpoint costs.",
    "alike": "Checkpoint or engine ({engine}): the texts do not show which of them costs more.",
    "none": "Neither is at fault: the branch by {engine} is as near as two engines are on the reference itself.",
}
NOT_TOLD = "Whether the checkpoint or the engine is at fault was not measured."
BY_ITSELF = "The engine is at fault: what failed asks the same weights twice, and changes how they are served alone."


def layer_of(history: "History", run: "RunRecord") -> LayerAtFault | None:
    """What is known of it; None of a PASS, and of what nobody serves.

    Figures count where they are of the same checkpoint against the same reference, and, where the gate judged a served
    branch, by the same engine. What an endpoint shows without a reference is none of the checkpoint's.
    """
    if run.report is None or run.identity is None or run.verdict is Verdict.PASS:
        return None
    engine = run.identity.engine
    failed = [each for each in run.report.criteria if each.id in run.report.decisive]
    if failed and run.verdict is Verdict.FAIL and all(each.probe is ProbeName.SERVED for each in failed):
        return LayerAtFault(at_fault="engine", engine=engine, lines=(BY_ITSELF,))
    if run.report.of_server_alone:
        return None
    served = engine if engine != IN_PROCESS else None
    newest = _newest(history.series_runs(run.branch, run.family), run, served)
    if newest is not None:
        return _told(newest, history.measurements(newest.id))
    if served is None:
        return None
    return LayerAtFault(at_fault=None, engine=served, lines=(NOT_TOLD,))


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


def _told(told: "SeriesRun", measurements: list[Measurement]) -> LayerAtFault | None:
    by_layer = {m.slice.partition("/")[2]: m for m in measurements if m.metric == "attributed_kl"}
    whole, excess, floor = (by_layer.get(name) for name in ("whole", EXCESS, "floor"))
    if whole is None or excess is None:
        return None
    engine = excess.slice.partition("/")[0]
    fault = fault_of(whole.effect_interval, None if floor is None else floor.effect_interval, excess.effect_interval)
    kl = {
        name: LayerFigure(value=by_layer[name].value, interval=by_layer[name].effect_interval)
        for name in WORDS
        if name in by_layer
    }
    intervals = {name: f"[{each.interval.lower:.3g}, {each.interval.upper:.3g}]" for name, each in kl.items()}
    figures = ", ".join(f"{WORDS[name]} {each.value:.3g} {intervals[name]}" for name, each in kl.items())
    lines = [AT_FAULT[fault].format(engine=engine), f"KL in nats a token: {figures} (run {told.id})."]
    arithmetic = next((name for name in ARITHMETICS if name == excess.note), None)
    if arithmetic is not None:
        lines.append(ARITHMETICS[arithmetic])
    return LayerAtFault(at_fault=fault, engine=engine, run=told.id, kl=kl, arithmetic=arithmetic, lines=tuple(lines))
