"""What q36eval says of one vLLM as it is now: its KL criteria by hidden states, or the probes that ask an endpoint."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serving_faults.faults import Probe
from benchmarks.serving_faults.server import Model
from benchmarks.serving_faults.switch import Switch
from q36eval.engines import Engine, EngineOptions, EngineSettings, open_engine
from q36eval.gate import GateReport, decide
from q36eval.kl.probe import KLProbe
from q36eval.probes import Digest, ItemResults, WorkItem
from q36eval.run.decoded_branch import DecodedHere

DOCUMENTS, CHARACTERS = 120, 160
"""The sandbox's criterion wants 100 clusters; of every document's beginning, since a fault that is everywhere shows
in few tokens of many documents."""
DRAWS = 20
"""Of every canary family: the fewest with which the policy's rates can be judged."""
GATE = ["gate", "--engine", "openai", "--skip", "evals", "--skip", "kl", "--draws", str(DRAWS)]


@dataclass(frozen=True)
class Judged:
    """One blocking criterion as it was judged."""

    id: str
    verdict: str
    figure: str


@dataclass(frozen=True)
class Said:
    """What was said of one state of the engine: every blocking criterion, or the sentence of a refusal."""

    verdict: str
    criteria: tuple[Judged, ...] = ()
    sentence: str = ""

    @property
    def failed(self) -> tuple[Judged, ...]:
        """The criteria that FAIL."""
        return tuple(each for each in self.criteria if each.verdict == "FAIL")


class Divergences:
    """What the engine in-process says of the corpus, once for all faults."""

    def __init__(self, model: Model, documents: int, characters: int) -> None:
        self._probe = KLProbe(sorted(model.beginnings(characters), key=lambda document: document.key)[:documents])
        self._policy = model.policy()
        engine = open_engine(model.folder)
        self._items = self._probe.plan(engine.tokenizer)
        head = engine.output_head().weight
        self._digests = {}
        for item, results in _answered(engine, self._items):
            digest = self._probe.digest(engine, item, results)
            self._digests[item.key] = Digest(values=digest.values, tensors={**digest.tensors, "head": head})

    def said_of(self, engine: Engine) -> Said:
        """The policy's KL criteria, of what the engine says now."""
        outcomes: list[Any] = []
        for item, results in _answered(engine, self._items):
            outcomes += self._probe.compare(engine, item, results, self._digests[item.key])
        criteria = tuple(each for each in self._policy.criteria if each.probe == "kl")
        policy = self._policy.model_copy(update={"criteria": criteria})
        return said_of_report(decide(policy, list(self._probe.summarize(outcomes))), "kl")


class AsDecoded:
    """The branch decoded in this process, once for all faults, as a gate decodes it."""

    def __init__(self, model: Model, characters: int) -> None:
        self._decoded = DecodedHere.of(model.folder, EngineOptions(kind="openai"), model.beginnings(characters))
        self._policy = model.policy("served")

    def said_of(self, engine: Engine) -> Said:
        """The policy `served`, of what the engine adds to it now."""
        measured = self._decoded.served_by(engine)
        report = decide(self._policy, [measured])  # Holm counts all that the policy judges
        criteria = tuple(
            each for each in report.criteria if (each.probe, each.metric) == (measured.probe, measured.metric)
        )
        return said_of_report(report.model_copy(update={"criteria": criteria}), "apart")


def _answered(engine: Engine, items: Sequence[WorkItem]) -> Iterator[tuple[WorkItem, ItemResults]]:
    scored = {each.request.key: each for each in engine.score([request for item in items for request in item.scores])}
    for item in items:
        yield item, ItemResults({request.key: scored[request.key] for request in item.scores})


@contextmanager
def opened(model: Model, python: str | Path, switched: Switch) -> Iterator[Engine]:
    """vLLM with its hidden states, by the engine `vllm`, with the faults' plug-in beside q36eval's."""
    interpreter = switched.interpreter(python)
    engine = open_engine(EngineSettings(model.folder, kind="vllm", engine_python=str(interpreter)))
    try:
        yield engine
    finally:
        engine._worker.close()  # type: ignore[attr-defined]


def gated(model: Model, address: str, state: Path) -> Said:
    """What a gate says of an endpoint's canaries."""
    command = [sys.executable, "-m", "q36eval", "--state", str(state), *GATE, "--branch", str(model.folder)]
    command += ["--reference", str(model.folder), "--base-url", address, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        document: dict[str, Any] = json.loads(done.stdout)
        document = document.get("gates", [document])[0]
        return _said(document["report"], "canaries")
    except (ValueError, KeyError):
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return Said(f"exit {done.returncode}", sentence=said[-1][:300] if said else "")


def said_of_report(report: GateReport, probe: Probe) -> Said:
    """Its blocking criteria of that probe."""
    return _said(json.loads(report.model_dump_json()), probe)


def _said(report: dict[str, Any], probe: Probe) -> Said:
    name = "served" if probe.endswith("apart") else probe
    criteria = [each for each in report["criteria"] if each["probe"] == name and each["tier"] == "blocking"]
    verdicts = {each["verdict"] for each in criteria}  # the whole is of other probes too, which were not asked
    verdict = next((each for each in ("FAIL", "NOT_MEASURED", "INCONCLUSIVE") if each in verdicts), "PASS")
    return Said(verdict, tuple(Judged(each["id"], each["verdict"], _figure(each)) for each in criteria))


def _figure(judged: dict[str, Any]) -> str:
    """The figure that was judged with its interval and counts."""
    if judged.get("figure") is None:
        return str(judged.get("reason") or "not measured")
    text, interval, counts = f"{judged['figure']:.3g}", judged.get("figure_interval"), judged.get("counts")
    if interval:  # a bound may be the text Infinity, as JSON has no such number
        text += f" ({float(interval['lower']):.3g} to {float(interval['upper']):.3g})"
    return f"{text}; {counts['scored']:,} of {counts['total']:,}" if counts else text
