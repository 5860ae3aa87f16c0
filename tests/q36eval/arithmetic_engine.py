"""An engine of plain arithmetic, with what every engine must have and nothing else: for tests of the contract.

The token after t is likely 7 t + 3 (modulo the vocabulary). A checkpoint is a folder with the sandbox's tokenizer whose
only weight, `tilt` [1], turns every state away from there: 0 is the reference, a little more a damaged branch.
"""

import hashlib
import math
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from q36eval.checkpoints import chat_template_sha256, checkpoint_sha256, load_tokenizer, tokenizer_sha256
from q36eval.engines import Engine, EngineSettings, ScoreRequest
from q36eval.engines.base import Generated, GenerationRequest, Scored
from q36eval.engines.logits import OutputHead
from q36eval.engines.opening import Kind
from q36eval.records import DeploymentIdentity

KIND = "arithmetic"
REGISTERED = Kind("tests.q36eval.arithmetic_engine:ArithmeticEngine")
WIDTH = 24
SHARPNESS = 8.0
COPIED = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def write_checkpoint(folder: Path, sandbox: Path, tilt: float) -> Path:
    """A folder that the engine opens."""
    folder.mkdir(parents=True)
    for name in COPIED:
        shutil.copy(sandbox / name, folder / name)
    save_file({"tilt": torch.tensor([tilt])}, folder / "model.safetensors")
    return folder


class ArithmeticEngine(Engine):
    """States [T, WIDTH] are codes of tokens; logits their products with every token's code."""

    def __init__(self, settings: EngineSettings) -> None:
        self.identity = self.identity_of(settings)
        self.tokenizer = load_tokenizer(settings.folder)
        self._tilt = float(load_file(settings.folder / "model.safetensors")["tilt"])
        token, axis = torch.arange(len(self.tokenizer)).unsqueeze(1), torch.arange(WIDTH) + 1
        codes = torch.sin((token + 1.0) * axis * math.sqrt(2.0))
        self._codes = codes / codes.norm(dim=1, keepdim=True)

    @classmethod
    def load(cls, settings: EngineSettings) -> "ArithmeticEngine":
        return cls(settings)

    @classmethod
    def identity_of(cls, settings: EngineSettings) -> DeploymentIdentity:
        return DeploymentIdentity(
            checkpoint_sha256=checkpoint_sha256(settings.folder),
            tokenizer_sha256=tokenizer_sha256(settings.folder),
            chat_template_sha256=chat_template_sha256(settings.folder),
            engine=KIND,
            engine_version="1",
        )

    def _states(self, before: Sequence[int]) -> torch.Tensor:
        tokens = torch.tensor(before)
        likely, other = (tokens * 7 + 3) % len(self._codes), (tokens * 5 + 1) % len(self._codes)
        return SHARPNESS * (math.cos(self._tilt) * self._codes[likely] + math.sin(self._tilt) * self._codes[other])

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        for request in requests:
            if request.key not in known:
                yield Scored(request, self._states(request.token_ids[request.first - 1 : -1]))

    def generate(self, requests: Sequence[GenerationRequest], known: Collection[str] = ()) -> Iterator[Generated]:
        for request in requests:
            if request.key not in known:
                yield self._continued(request)

    def _continued(self, request: GenerationRequest) -> Generated:
        drawn = hashlib.sha256(f"{request.seed}/{request.key}".encode()).digest()[0] if request.temperature else 0
        ids, token = [], (request.token_ids[-1] + drawn) % len(self._codes)
        budget = min(request.max_new_tokens, 3 + sum(request.token_ids) % 7)
        while len(ids) < budget:
            token = int(self.logits(self._states([token])).argmax())
            if token == self.tokenizer.eos_token_id:
                break
            ids.append(token)
        ended = len(ids) < request.max_new_tokens
        return Generated(
            request,
            tuple(ids),
            self.tokenizer.decode(ids, skip_special_tokens=False),
            "stop" if ended else "length",
            end_id=self.tokenizer.eos_token_id if ended else None,
        )

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states.float() @ self._codes.T

    def output_head(self) -> OutputHead:
        return OutputHead(self._codes)
