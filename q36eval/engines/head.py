"""The separate head of a checkpoint: logits from final hidden states of another engine."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone uses)
from torch import Tensor

from q36eval.checkpoints.architecture import Architecture
from q36eval.checkpoints.emulation import InputQuantizer
from q36eval.checkpoints.open_checkpoints import hold
from q36eval.checkpoints.reader import Checkpoint, open_checkpoint
from q36eval.checkpoints.weights import LogicalWeight, index_weights
from q36eval.engines.base import EngineSettings
from q36eval.engines.logits import LogitsForm, OutputHead
from q36eval.errors import CorruptCheckpointError, EngineError, UsageError


def _weight(checkpoint: Checkpoint, weights: Mapping[str, LogicalWeight], parameter: str) -> LogicalWeight:
    """The stored weight that becomes a parameter of the model, or the one that the parameter is tied to.

    Raises:
        CorruptCheckpointError: it does not exist.
    """
    outline = Architecture.of(checkpoint).outline
    tied = outline.tied.get(parameter, parameter)
    found = next((name for wanted in (parameter, tied) for name in weights if outline.is_for(name, wanted)), None)
    if found is None:
        raise CorruptCheckpointError("tensor-missing", f"{checkpoint.path} stores no {parameter}.")
    return weights[found]


class Embeddings:
    """The decoded input embeddings [V, H] in BF16: the input of a draft head besides hidden states."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    @classmethod
    def of(cls, settings: EngineSettings) -> "Embeddings":
        """Decode them.

        Raises:
            UsageError: a quantization that is not decoded.
            CorruptCheckpointError: they do not exist, or a tensor is missing or unexpected.
        """
        checkpoint = open_checkpoint(hold(settings.folder))
        parameter = f"{Architecture.of(checkpoint).outline.input_embeddings}.weight"
        stored = _weight(checkpoint, index_weights(checkpoint).weights, parameter)
        return cls(stored.read(settings.device)[0].to(torch.bfloat16))

    def of_tokens(self, token_ids: Sequence[int]) -> Tensor:
        """Rows [T, H]."""
        return F.embedding(torch.tensor(list(token_ids), device=self._weight.device), self._weight)


class Head:
    """The decoded output projection in BF16, and the quantization of its inputs."""

    def __init__(self, head: OutputHead, quantizer: InputQuantizer | None) -> None:
        self._head, self._quantizer = head, quantizer
        self.device = head.weight.device

    @classmethod
    def of(cls, settings: EngineSettings) -> "Head":
        """Decode it; every stored tensor of the text model is checked, though only one is read.

        Raises:
            UsageError: a quantization that is not decoded or emulated.
            CorruptCheckpointError: neither a head nor tied embeddings exist, or a tensor is missing or unexpected.
        """
        checkpoint = open_checkpoint(hold(settings.folder))
        weights, architecture = index_weights(checkpoint).weights, Architecture.of(checkpoint)
        name = architecture.outline.head
        stored = _weight(checkpoint, weights, f"{name}.weight")
        decoded, scheme = stored.read(settings.device)
        weight = decoded.to(torch.bfloat16)
        bias = None
        if f"{name}.bias" in architecture.outline.shapes:
            bias = _weight(checkpoint, weights, f"{name}.bias").read(settings.device)[0].to(torch.bfloat16)
        head = OutputHead(weight, bias, LogitsForm.of(architecture.config))
        # embeddings are looked up by row; as a head they multiply without a change
        if scheme is None or not settings.emulate_activations or stored.tensor_class == "embeddings":
            return cls(head, None)
        return cls(head, InputQuantizer([scheme], weight.shape[1], weight.device))

    @torch.inference_mode()
    def logits(self, hidden_states: Tensor) -> Tensor:
        """Float32 logits [T, V] of final hidden states [T, H], products accumulated in float32."""
        states = hidden_states.to(self.device)
        return self._head.logits(states if self._quantizer is None else self._quantizer(states))

    def plain(self) -> OutputHead:
        """The plain head, if it determines the logits.

        Raises:
            EngineError: the head quantizes its inputs.
        """
        if self._quantizer is not None:
            raise EngineError(
                "head-quantized", "A deployment whose head quantizes its inputs cannot be captured as a reference."
            )
        return self._head


def stored_head(folder: Path) -> OutputHead:
    """The head of a plain BF16, FP16 or FP32 checkpoint; the caller compares its hash.

    Raises:
        UsageError: it stores none, or a quantized one.
        CorruptCheckpointError: see `open_checkpoint`.
    """
    checkpoint = open_checkpoint(folder)
    name = Architecture.of(checkpoint).outline.head
    weights = index_weights(checkpoint).weights
    try:
        if _weight(checkpoint, weights, f"{name}.weight").is_plain:
            return Head.of(EngineSettings(folder)).plain()
    except CorruptCheckpointError:
        pass
    raise UsageError(
        "head-not-plain", f"{folder} stores no plain output head, so a pack must keep it; capture without --no-head."
    )
