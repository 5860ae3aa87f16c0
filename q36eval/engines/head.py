"""The head of a checkpoint on its own: logits from final hidden states that another engine computed."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone uses)
from torch import Tensor

from q36eval.checkpoints.architecture import Architecture
from q36eval.checkpoints.emulation import InputQuantizer
from q36eval.checkpoints.open_checkpoints import hold
from q36eval.checkpoints.reader import open_checkpoint
from q36eval.checkpoints.weights import index_weights
from q36eval.engines.base import EngineSettings
from q36eval.engines.numerics import float32_logits
from q36eval.errors import CorruptCheckpointError, EngineError

HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"


class Embeddings:
    """The decoded input embeddings [V, H] in BF16: what a draft head reads beside hidden states."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    @classmethod
    def of(cls, settings: EngineSettings) -> "Embeddings":
        """Decode them.

        Raises:
            UsageError: a quantization that is not decoded.
            CorruptCheckpointError: there are none, or a tensor is missing or unexpected.
        """
        stored = index_weights(open_checkpoint(hold(settings.folder))).weights.get(EMBEDDINGS)
        if stored is None:
            raise CorruptCheckpointError("tensor-missing", f"{settings.folder} stores no {EMBEDDINGS}.")
        return cls(stored.read(settings.device)[0].to(torch.bfloat16))

    def of_tokens(self, token_ids: Sequence[int]) -> Tensor:
        """Rows [T, H]."""
        return F.embedding(torch.tensor(list(token_ids), device=self._weight.device), self._weight)


class Head:
    """The decoded output projection [V, H] in BF16, and what the checkpoint does to its inputs."""

    def __init__(self, weight: Tensor, quantizer: InputQuantizer | None) -> None:
        self.weight, self._quantizer = weight, quantizer

    @classmethod
    def of(cls, settings: EngineSettings) -> "Head":
        """Decode it; every stored tensor of the text model is accounted for, though only one is read.

        Raises:
            UsageError: a quantization that is not decoded or emulated.
            CorruptCheckpointError: there is no head and nothing to tie it to, or a tensor is missing or unexpected.
        """
        checkpoint = open_checkpoint(hold(settings.folder))
        weights = index_weights(checkpoint).weights
        stored = weights.get(HEAD)
        if stored is None and Architecture.of(checkpoint).config.tie_word_embeddings:
            stored = weights.get(EMBEDDINGS)
        if stored is None:
            raise CorruptCheckpointError("tensor-missing", f"{settings.folder} stores no {HEAD}.")
        decoded, scheme = stored.read(settings.device)
        weight = decoded.to(torch.bfloat16)
        if (
            scheme is None or not settings.emulate_activations or stored.name == EMBEDDINGS
        ):  # embeddings look rows up; as a head they multiply as they are
            return cls(weight, None)
        return cls(weight, InputQuantizer([scheme], weight.shape[1], weight.device))

    @torch.inference_mode()
    def logits(self, hidden_states: Tensor) -> Tensor:
        """Float32 logits [T, V] of final hidden states [T, H], products accumulated in float32."""
        states = hidden_states.to(self.weight.device)
        return float32_logits(states if self._quantizer is None else self._quantizer(states), self.weight)

    def plain_weight(self) -> Tensor:
        """The weight, where it alone gives the logits.

        Raises:
            EngineError: the head quantizes its inputs.
        """
        if self._quantizer is not None:
            raise EngineError(
                "head-quantized", "A deployment whose head quantizes its inputs cannot be captured as a reference."
            )
        return self.weight
