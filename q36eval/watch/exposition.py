"""What `/metrics` says: one snapshot of a watch, as families of samples of few labels. Needs `prometheus_client`.

Names, types and labels are a contract with rules and dashboards: docs/watch.md lists them all.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from q36eval.watch.incidents import Phase, remaining_rounds
from q36eval.watch.service import VERDICTS, Watch

PUT_OFF = ("throttled", "latency", "budget", "spool", "disk")
RESULTS = ("pass", "fail", "inconclusive", "not_measured", "put_off")
TRANSITIONS = ("opened", "confirmed", "closed", "dismissed")
TAKEN = ("delivered", "failed", "given_up")
SLICES = ("required", "prompts", "families", "kl", "differentials", "all")

Sample = tuple[dict[str, str], float]


class Exposed:
    """The series of one watch."""

    def __init__(self, watch: Watch, version: str) -> None:
        self._watch, self._version = watch, version

    def collect(self) -> Iterator[Any]:
        """Every family, with the label of the deployment."""
        watch, store = self._watch, self._watch.store
        deployment, state, newest = watch.deployment, watch.state, watch.newest
        counts, day = store.counts(), f"{watch.now():%Y-%m-%d}"
        spent, budget = store.spent(day), deployment.budget
        unkept = watch.unkept

        def gauge(name: str, meaning: str, samples: Iterable[Sample]) -> Any:
            return _filled(GaugeMetricFamily, name, meaning, deployment.name, samples)

        def counter(name: str, meaning: str, samples: Iterable[Sample]) -> Any:
            return _filled(CounterMetricFamily, name, meaning, deployment.name, samples)

        verdict = newest.get("verdict")
        yield gauge(
            "q36eval_verdict",
            "1 for the verdict of the newest round.",
            [({"verdict": each}, float(each == verdict)) for each in VERDICTS.values()] if verdict else [],
        )
        yield gauge("q36eval_metric_value", "Newest figure.", _values(newest))
        yield gauge("q36eval_metric_bound", "What a figure is held against.", _bounds(newest))
        moments = {"success": newest.get("success_at"), "round": newest.get("at")}
        for name, at in moments.items():
            samples: list[Sample] = [] if at is None else [({}, float(at))]
            yield gauge(f"q36eval_last_{name}_timestamp_seconds", "End of the newest round of that kind.", samples)
        yield gauge("q36eval_interval_seconds", "Planned time between two rounds.", [({}, deployment.every_s)])
        lost = float(sum(unkept.values()))
        yield counter(
            "q36eval_rounds",
            "Rounds by result.",
            [({"result": r}, counts.get(("rounds", r), 0.0) + (lost if r == "put_off" else 0.0)) for r in RESULTS],
        )
        yield counter(
            "q36eval_put_off",
            "Rounds put off.",
            [({"reason": r}, counts.get(("put_off", r), 0.0) + unkept.get(r, 0)) for r in PUT_OFF],
        )
        for what, spent_today, per_day, per_round in (
            ("requests", spent.requests, budget.requests_per_day, budget.requests_per_round),
            ("tokens", spent.tokens, budget.tokens_per_day, budget.tokens_per_round),
        ):
            total = counts.get((f"budget_{what}", ""), 0.0)
            yield counter(f"q36eval_budget_{what}", f"{what.title()} charged to the budget.", [({}, total)])
            limits: list[Sample] = [({"window": "day"}, float(per_day)), ({"window": "round"}, float(per_round))]
            yield gauge(f"q36eval_budget_{what}_limit", f"{what.title()} allowed.", limits)
            remaining = float(max(0, per_day - spent_today))
            yield gauge(f"q36eval_budget_{what}_remaining", f"{what.title()} left today (UTC).", [({}, remaining)])
        holds = {"none": state.incident is None, "opened": state.phase is Phase.OPENED}
        holds["confirmed"] = state.phase is Phase.CONFIRMED
        yield gauge(
            "q36eval_incident_state",
            "1 for the state that holds.",
            [({"state": s}, float(v)) for s, v in holds.items()],
        )
        opened = 0.0 if state.incident is None else state.incident.opened.timestamp()
        yield gauge("q36eval_incident_opened_timestamp_seconds", "When the incident was opened.", [({}, opened)])
        yield counter(
            "q36eval_incidents",
            "Transitions of incidents.",
            [({"event": e}, counts.get(("incidents", e), 0.0)) for e in TRANSITIONS],
        )
        left = remaining_rounds(state, deployment.alarm)
        yield gauge("q36eval_calibration_rounds_remaining", "Rounds until the baseline stands.", [({}, float(left))])
        yield gauge("q36eval_backoff_seconds", "For how long the server is let alone.", [({}, watch.backoff_s)])
        yield gauge("q36eval_endpoint_up", "1 where the endpoint answered.", [({}, float(watch.endpoint_up))])
        ratio = watch.gauge.latency_ratio
        yield gauge(
            "q36eval_endpoint_latency_ratio",
            "Time per token over its baseline.",
            [] if ratio is None else [({}, ratio)],
        )
        yield gauge("q36eval_history_reachable", "1 where history answers.", [({}, float(watch.spool.reachable))])
        yield gauge("q36eval_spool_rounds", "Finished rounds that history lacks.", [({}, float(store.spooled()))])
        yield gauge(
            "q36eval_spool_rounds_limit", "At so many nothing is asked.", [({}, float(deployment.spool_rounds))]
        )
        yield gauge("q36eval_webhook_pending", "Deliveries nobody has taken.", [({}, float(store.pending()))])
        yield counter(
            "q36eval_webhook_deliveries",
            "Attempts at deliveries.",
            [({"result": r}, counts.get(("webhook", r), 0.0)) for r in TAKEN],
        )
        told = {"version": self._version, "policy": watch.policy_name}
        yield gauge("q36eval_watch_info", "Which program watches, by which policy.", [(told, 1.0)])


def page(watch: Watch, version: str, accept: str) -> tuple[bytes, str]:
    """The page and its content type: OpenMetrics where `accept` names it, else Prometheus' own text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Exposed(watch, version))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _filled(kind: Any, name: str, meaning: str, deployment: str, samples: Iterable[Sample]) -> Any:
    listed = list(samples)
    labels = ["deployment", *(listed[0][0] if listed else {})]
    family = kind(name, meaning, labels=labels)
    for values, value in listed:
        family.add_metric([deployment, *values.values()], value)
    return family


def _values(newest: dict[str, Any]) -> Iterator[Sample]:
    for name, share in newest.get("lost", {}).items():
        yield {"metric": "loss_share", "slice": name}, float(share)
    for name, value in newest.get("evidence", {}).items():
        if name in SLICES and math.isfinite(value):
            yield {"metric": "evidence", "slice": name}, float(value)
    if newest.get("divergence") is not None:
        yield {"metric": "kl_divergence", "slice": "kl"}, float(newest["divergence"])


def _bounds(newest: dict[str, Any]) -> Iterator[Sample]:
    for name, share in newest.get("quiet", {}).items():
        if name != "prompts":
            yield {"metric": "loss_share", "slice": name, "side": "upper"}, float(share)
    if newest.get("quiet"):
        yield {"metric": "evidence", "slice": "all", "side": "upper"}, 1.0
        yield {"metric": "kl_divergence", "slice": "kl", "side": "upper"}, float(newest["tolerance"])
