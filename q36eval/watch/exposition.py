"""The content of `/metrics`: one snapshot of a watch, as families of samples with few labels.

Names, types and labels are a contract with rules and dashboards: docs/watch.md lists all. Needs `prometheus_client`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from q36eval.watch.incidents import Phase, remaining_rounds
from q36eval.watch.service import Watch

PUT_OFF = ("throttled", "latency", "budget", "spool", "disk")
MEASURED = ("pass", "fail", "inconclusive", "not_measured")
RESULTS = (*MEASURED, "put_off")
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
        watch, store, deployment = self._watch, self._watch.store, self._watch.deployment
        state, newest, counts = watch.state, watch.newest, store.counts()

        def gauge(name: str, meaning: str, samples: Iterable[Sample]) -> Any:
            return _filled(GaugeMetricFamily, name, meaning, deployment.name, samples)

        def counter(name: str, meaning: str, samples: Iterable[Sample]) -> Any:
            return _filled(CounterMetricFamily, name, meaning, deployment.name, samples)

        def counted(of: str, values: Sequence[str]) -> dict[str, float]:
            """Counters of that name by their labels, including those that the disk could not store."""
            unkept = watch.unkept if of == "put_off" else {"put_off": sum(watch.unkept.values())}
            more = unkept if of in ("put_off", "rounds") else {}
            return {value: counts.get((of, value), 0.0) + more.get(value, 0) for value in values}

        verdict = newest.get("verdict")
        verdicts = {each.upper(): each.upper() == verdict for each in MEASURED} if verdict else {}
        yield gauge("q36eval_verdict", "1 for the verdict of the newest measured round.", _by("verdict", verdicts))
        yield gauge("q36eval_metric_value", "Newest figure; evidence of 1 opens an incident.", _values(newest))
        yield gauge("q36eval_metric_bound", "Bound that the figure is compared with.", _bounds(newest))
        for name, at in {"success": newest.get("success_at"), "round": newest.get("at")}.items():
            meaning = "End of the newest round; success: of one that measured enough."
            yield gauge(f"q36eval_last_{name}_timestamp_seconds", meaning, _single(at))
        yield gauge("q36eval_interval_seconds", "Planned time between two rounds.", _single(deployment.every_s))
        yield counter("q36eval_rounds", "Rounds by result.", _by("result", counted("rounds", RESULTS)))
        yield counter("q36eval_put_off", "Rounds put off.", _by("reason", counted("put_off", PUT_OFF)))
        spent, budget = store.spent(f"{watch.now():%Y-%m-%d}"), deployment.budget
        for what in ("requests", "tokens"):
            limits = {window: getattr(budget, f"{what}_per_{window}") for window in ("day", "round")}
            total, remaining = counts.get((f"budget_{what}", ""), 0.0), limits["day"] - getattr(spent, what)
            yield counter(f"q36eval_budget_{what}", f"{what.title()} charged to the budget.", _single(total))
            yield gauge(f"q36eval_budget_{what}_limit", f"{what.title()} allowed.", _by("window", limits))
            meaning = f"{what.title()} left today (UTC)."
            yield gauge(f"q36eval_budget_{what}_remaining", meaning, _single(max(0, remaining)))
        holds = {"none": state.incident is None, "opened": state.phase is Phase.OPENED}
        holds["confirmed"] = state.phase is Phase.CONFIRMED
        yield gauge("q36eval_incident_state", "1 for the state that holds.", _by("state", holds))
        opened = 0.0 if state.incident is None else state.incident.opened.timestamp()
        yield gauge("q36eval_incident_opened_timestamp_seconds", "Start of the open incident, else 0.", _single(opened))
        transitions = counted("incidents", TRANSITIONS)
        yield counter("q36eval_incidents", "Transitions of incidents.", _by("event", transitions))
        taken = counted("webhook", TAKEN)
        yield counter("q36eval_webhook_deliveries", "Deliveries by result.", _by("result", taken))
        for name, meaning, value in (
            (
                "calibration_rounds_remaining",
                "Rounds until the baseline is complete; no alarm before.",
                remaining_rounds(state, deployment.alarm),
            ),
            ("backoff_seconds", "Seconds until the server may be asked again; usually 0.", watch.backoff_s),
            ("endpoint_up", "1 if the endpoint answered in the newest round.", watch.endpoint_up),
            ("endpoint_latency_ratio", "Time per token divided by its baseline.", watch.gauge.latency_ratio),
            ("history_reachable", "1 if the newest attempt to write history succeeded.", watch.spool.reachable),
            ("spool_rounds", "Finished rounds that history lacks.", store.spooled()),
            ("spool_rounds_limit", "At this number of rounds nothing is requested.", deployment.spool_rounds),
            ("webhook_pending", "Deliveries that no receiver has accepted.", store.pending()),
        ):
            yield gauge(f"q36eval_{name}", meaning, _single(value))
        told = {"version": self._version, "policy": watch.setting.policy.name}
        yield gauge("q36eval_watch_info", "Which program watches, by which policy.", [(told, 1.0)])


def _single(value: float | None) -> list[Sample]:
    """A sample without labels; none for an unknown figure."""
    return [] if value is None else [({}, float(value))]


def _by(label: str, values: Mapping[str, float]) -> list[Sample]:
    """A sample for each value of a label."""
    return [({label: name}, float(value)) for name, value in values.items()]


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
