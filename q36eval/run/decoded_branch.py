"""The serving error in a gate: the branch decoded here against the served branch, on the starts of texts.

The divergence is the serving error of `attribute --engine` (`q36eval.run.serving_error`), with more but shorter texts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from q36eval.checkpoints.gpu import give_back
from q36eval.engines import Engine, EngineOptions, EngineSettings, ScoreRequest, as_reference, open_engine
from q36eval.engines.head import Head
from q36eval.errors import EngineError
from q36eval.gate.fault_layer import SERVING
from q36eval.gate.noise import floor_metric
from q36eval.history import History
from q36eval.kl.attribution import Sample, hidden_states, kl_clusters
from q36eval.kl.corpus import CorpusDocument, in_turn
from q36eval.kl.raw_texts import raw_ids
from q36eval.kl.serving_error import Side, divergence_sums_from
from q36eval.metrics import metric_of
from q36eval.records import DeploymentIdentity, Measurement, ProbeName
from q36eval.run.serving_error import arithmetic_of, judged_side
from q36eval.served.declared_server import SERVING_KL, SERVING_TEXTS

TOKENS = 64
"""At the start of each text: an arithmetic fault is everywhere, and an interval needs independent texts."""
NOT_SERVED = "the engine {kind} serves nothing: what it computes is the branch decoded here"
NO_STATES = (
    "what serving adds: the server gives no log-probabilities over its whole vocabulary (vLLM: --max-logprobs -1); "
    "judge it with --engine vllm where that is too large for it"
)


@dataclass(frozen=True)
class DecodedHere:
    """The texts, and the branch decoded in this process: weight-only and, if it quantizes inputs, also emulated."""

    chosen: Sample
    sides: Mapping[str, Side]
    quantizes_inputs: bool

    @classmethod
    def of(cls, folder: Path, options: EngineOptions, documents: Sequence[CorpusDocument]) -> "DecodedHere":
        """Score the texts by the branch whose serving engine has these options; only states and heads remain in memory.

        Raises:
            CorruptCheckpointError, EngineError: the branch cannot be loaded, or a text cannot be scored.
        """
        weight_only = replace(
            as_reference(options), emulate_activations=False, kv_cache_dtype=options.kv_cache_dtype
        ).of(folder)
        engine = open_engine(weight_only)
        quantizes_inputs = engine.ignores_activation_quantization
        chosen = beginnings(documents, engine.tokenizer)
        sides = {"weight-only": _side(engine, weight_only, chosen)}
        del engine
        give_back(torch.device(options.device))  # the next one plans with it
        if quantizes_inputs and options.emulate_activations:
            emulated = replace(weight_only, emulate_activations=True)
            sides["emulated"] = _side(open_engine(emulated), emulated, chosen)
            give_back(torch.device(options.device))
        return cls(chosen, sides, quantizes_inputs)

    def served_by(self, engine: Engine) -> Measurement:
        """`served.serving_kl`: the divergence of that engine's distributions from those of the decoded branch.

        If the branch quantizes inputs, the decoded variant nearer to the engine counts, as in `attribute`.

        Raises:
            EngineError: the engine does not support the divergence, or returns non-finite numbers.
        """
        if engine.scores != "states":
            raise EngineError("server-log-probs-missing", NO_STATES)
        sums, _ = divergence_sums_from(self.chosen, self.sides, engine)
        arithmetic = arithmetic_of(self.chosen, sums, quantizes_inputs=self.quantizes_inputs)
        judged = judged_side(arithmetic, sums)
        clusters = kl_clusters(self.chosen.units, sums[judged])
        note = f"against the branch decoded here, arithmetic {arithmetic}"
        return metric_of(ProbeName.SERVED, SERVING_KL).summarized(clusters, note=note)


def beginnings(documents: Sequence[CorpusDocument], tokenizer: Any) -> Sample:
    """The first tokens of `SERVING_TEXTS` documents, one per source, slice by slice in turn."""
    chosen: dict[str, tuple[CorpusDocument, ScoreRequest]] = {}
    for document in in_turn(documents, lambda document: document.slice):
        source = document.cluster or document.key
        if source in chosen:
            continue
        ids = raw_ids(tokenizer, document.text)[:TOKENS]
        if len(ids) > 1:
            chosen[source] = document, ScoreRequest(f"{document.key}/0", ids, group="attribute")
        if len(chosen) == SERVING_TEXTS:
            break
    return Sample(tuple(document for document, _ in chosen.values()), tuple(asked for _, asked in chosen.values()))


def known_floor(
    history: History, family: str, branches: Iterable[str], served: DeploymentIdentity, reference: DeploymentIdentity
) -> Measurement | None:
    """The smallest difference of two engines on that reference found by `attribute --engine`, as the criterion's floor.

    One of the two is the engine in-process, the other that of `served`, in its version. None if never measured.
    """
    floors = []
    for run in (run for name in dict.fromkeys(branches) for run in history.series_runs(name, family)):
        theirs, against = run.identity, run.reference_identity
        if SERVING not in run.suites or theirs is None or against is None:
            continue
        same_engine = (theirs.engine, theirs.engine_version) == (served.engine, served.engine_version)
        if not same_engine or against.checkpoint_sha256 != reference.checkpoint_sha256:
            continue
        is_reference = theirs.checkpoint_sha256 == reference.checkpoint_sha256
        layers = ("floor", "serving") if is_reference else ("floor",)
        found = [each for each in history.measurements(run.id) if each.metric == "attributed_kl"]
        floors += [(each, run.id) for each in found if each.slice.partition("/")[2] in layers]
    if not floors:
        return None
    least, run_id = min(floors, key=lambda each: (each[0].value, each[1]))
    return metric_of(ProbeName.SERVED, floor_metric(SERVING_KL)).measured(
        value=least.value,
        effect=least.effect,
        effect_interval=least.effect_interval,
        counts=least.counts,
        clusters=least.clusters,
        note=f"the reference by {served.engine} {served.engine_version}, run {run_id}",
    )


def _side(engine: Engine, settings: EngineSettings, chosen: Sample) -> Side:
    """Kept on the host, to free the device for the next model."""
    states = {key: rows.cpu() for key, rows in hidden_states(engine, chosen.requests).items()}
    return Side(states, Head.of(settings).logits)
