"""What the in-process engine computes, as numbers: recorded beside `NUMERICS_VERSION`, compared by a test.

    python -m tests.assets.numerics     records them anew, after the version was raised with a line on what changed

Logits and final hidden states, in float32, of every checkpoint that a real producer wrote (several a format), and of
the sandbox's reference through the whole engine. Not in BF16, where another instruction set moved a log-probability by
0.24 nats; in float32 it moved none of these numbers by 1e-6, and the sandbox's scores by at most 2e-5.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from q36eval.checkpoints import load_model
from q36eval.engines import open_engine
from q36eval.engines.base import GenerationRequest, ScoreRequest
from q36eval.engines.in_process import InProcessEngine
from q36eval.engines.numerics import NUMERICS_VERSION
from q36eval.engines.sampling import Sampler, gumbel_noise, sample

ASSETS = Path(__file__).parent
GOLDEN = ASSETS / "golden"
BF16 = ASSETS.parents[1] / "data" / "sandbox" / "bf16"
RECORDED = ASSETS / f"numerics-{NUMERICS_VERSION}.npz"

GROUPS_WIDER_THAN_THE_MODEL = ("ct-fp8-block", "ct-mixed")
"""Groups of 128 features do not fit into a hidden size of 64: these figures are without emulated inputs."""

TOLERANCES = {"logits": 1e-4, "hidden": 1e-4, "scored": 5e-4, "drawn": 0.0, "noise": 1e-12}
"""The most by which a number may differ, by the last part of its name."""

Figures = dict[str, NDArray[np.float64]]


@torch.inference_mode()
def figures() -> Figures:
    """Every number by name."""
    found: Figures = {}
    for name in sorted(json.loads((GOLDEN / "MANIFEST.json").read_text())):
        model = load_model(GOLDEN / name, emulate_activations=name not in GROUPS_WIDER_THAN_THE_MODEL).model.float()
        out = model(input_ids=torch.arange(40).reshape(2, 20), output_hidden_states=True)
        found[f"{name}/logits"] = out.logits[:, ::6].double().numpy()
        found[f"{name}/hidden"] = out.hidden_states[-1][:, ::6].double().numpy()
    found |= _drawn()
    return found | (_scored() if (BF16 / "model.safetensors").exists() else {})


def _drawn() -> Figures:
    """Noise, and tokens drawn from logits that are the same everywhere."""
    samplers = [Sampler(0.7, 0.9, 7, f"request {row}", top_k=20, coupling="gumbel") for row in range(4)]
    by_rank = [Sampler(0.7, 0.9, 7, f"request {row}", top_k=20, presence_penalty=1.0) for row in range(4)]
    ids = torch.arange(8).repeat(4, 1)
    found = {"gumbel/noise": gumbel_noise(ids, samplers).numpy()}
    logits = torch.from_numpy(np.random.default_rng(20261122).normal(0, 2, (12, 4, 64)))
    for name, each in (("gumbel", samplers), ("inverse_cdf", by_rank)):
        drawn = []
        for step in logits:
            tokens = sample(step, each)
            for sampler, token in zip(each, tokens.tolist(), strict=True):
                sampler.took(token)
            drawn.append(tokens.double().numpy())
        found[f"{name}/drawn"] = np.stack(drawn)
    return found


def _scored() -> Figures:
    loaded = open_engine(BF16)
    engine = InProcessEngine(load_model(BF16).model.float(), loaded.tokenizer, loaded.identity)
    text = "Obchod A: 8 400 − 1 680 = 6 720 Kč. The invoice was paid on 2024-01-05."
    ids = tuple(engine.tokenizer.encode(text, add_special_tokens=False))
    found: Figures = {}
    questions = [ids[: 9 + 5 * number] for number in range(5)]
    alone = [ScoreRequest(key=str(n), token_ids=each, group="a") for n, each in enumerate(questions)]
    sharing = [replace(each, group="b", first=9, shared=9) for each in alone[1:]]
    for name, requests in (("scored", alone), ("shared/scored", sharing)):
        for scored in engine.score(requests):
            assert scored.hidden_states is not None, scored.error
            chosen = torch.tensor(scored.request.token_ids[scored.request.first :]).unsqueeze(1)
            taken = engine.logits(scored.hidden_states).log_softmax(-1).gather(-1, chosen)
            found[f"sandbox/{scored.request.key}/{name}"] = taken.double().numpy()
    greedy = [GenerationRequest(str(n), each, 24, group="c") for n, each in enumerate(questions)]
    sampled = [replace(each, temperature=3.0, top_p=0.95, top_k=20, presence_penalty=0.5, seed=7) for each in greedy]
    for name, asked in (("greedy", greedy), ("sampled", sampled)):
        for generated in engine.generate(asked):
            assert generated.error is None
            found[f"sandbox/{generated.request.key}/{name}/drawn"] = np.array(generated.token_ids, dtype=np.float64)
    return found


def recorded() -> Figures:
    """What was recorded for this version.

    Raises:
        FileNotFoundError: nothing was.
    """
    with np.load(RECORDED) as file:
        return {name: file[name] for name in file.files}


if __name__ == "__main__":
    RECORDED.unlink(missing_ok=True)
    kinds = {"noise": np.float64}
    np.savez_compressed(
        RECORDED,
        **{name: value.astype(kinds.get(name.rpartition("/")[2], np.float32)) for name, value in figures().items()},
    )
    print(f"{RECORDED.name}: {RECORDED.stat().st_size:,} bytes")
