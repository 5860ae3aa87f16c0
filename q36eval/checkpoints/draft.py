"""The draft head that a checkpoint may ship (multi-token prediction): it guesses a token ahead of the model.

From the final hidden state at one position and the token that follows it, the head predicts the token after that. Its
output takes the place of the hidden state when it guesses further. Embeddings and `lm_head` are the model's own. As
vLLM computes it (vllm/model_executor/models/qwen3_5_mtp.py).
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeRMSNorm, Qwen3_5MoeTextModel

from q36eval.checkpoints import emulation
from q36eval.checkpoints.architecture import Architecture, Outline
from q36eval.checkpoints.loader import compute_buffers, input_schemes
from q36eval.checkpoints.names import DRAFT_HEAD, left_out_as
from q36eval.checkpoints.reader import Checkpoint
from q36eval.checkpoints.weight_slots import Decoder, places_in, plan_of, stacked
from q36eval.checkpoints.weights import index_weights
from q36eval.errors import UsageError


class DraftHead(Qwen3_5MoeTextModel):  # type: ignore[misc]  # transformers has no types
    """A full-attention layer over tokens and the hidden states before them; parameters are named as they are stored."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        del self.embed_tokens
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.pre_fc_norm_embedding = Qwen3_5MoeRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = Qwen3_5MoeRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    @torch.inference_mode()
    def states(self, hidden_states: Tensor, embedded: Tensor, first_position: int) -> Tensor:
        """Final states [T, H], each after its norm, from which `lm_head` predicts the token after the embedded one.

        Row t of `hidden_states` [T, H] is the model's (or the head's own, a guess before) at position
        `first_position` + t, and row t of `embedded` [T, H] the token that follows there.
        """
        joined = torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden_states)], dim=-1)
        positions = torch.arange(first_position, first_position + len(joined), device=joined.device)
        output = self(inputs_embeds=self.fc(joined).unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False)
        return output.last_hidden_state[0]  # type: ignore[no-any-return]


def has_draft_head(checkpoint: Checkpoint) -> bool:
    """Whether any tensor of one is stored."""
    return any(left_out_as(stored) == DRAFT_HEAD for stored in checkpoint.tensors)


def draft_config(checkpoint: Checkpoint) -> Any:
    """The configuration of the head's one layer.

    Raises:
        UsageError: it has several layers, or the checkpoint is of another architecture.
    """
    config = copy.deepcopy(Architecture.of(checkpoint).config)
    layers = getattr(config, "mtp_num_hidden_layers", None) or 1
    if layers != 1:
        raise UsageError(
            "draft-head-unsupported",
            f"{checkpoint.path} has a draft head of {layers} layers; one of a single layer is measured.",
        )
    config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
    return config


def draft_bytes(checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """What the checkpoint's draft head takes; 0 where it ships none that can be loaded."""
    if not has_draft_head(checkpoint):
        return 0
    try:
        with torch.device("meta"):
            head = DraftHead(draft_config(checkpoint))
    except UsageError:
        return 0
    values: int = sum(parameter.numel() for parameter in head.parameters())
    return values * dtype.itemsize


def load_draft_head(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, emulate_activations: bool
) -> DraftHead | None:
    """The checkpoint's draft head, every tensor of it used exactly once; None where it ships none.

    Raises:
        UsageError: it has several layers, or a quantization that is not decoded or emulated.
        CorruptCheckpointError: a tensor is missing, unexpected, of the wrong shape, or cannot be decoded.
    """
    if not has_draft_head(checkpoint):
        return None
    index = index_weights(checkpoint, part=DRAFT_HEAD)
    config = draft_config(checkpoint)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            head: Any = DraftHead(config)
    finally:
        torch.set_default_dtype(before)
    head.config.dtype = dtype
    outline = Outline(head, mapped_as=Architecture.of(checkpoint).empty(dtype))
    decoder = Decoder(head, outline, checkpoint, device, dtype)
    plan = plan_of(outline, checkpoint, index, below="mtp.")
    decoder.fill(stacked(plan))
    compute_buffers(head, device)
    emulation.install(head, input_schemes(index) if emulate_activations else {}, places_in(plan))
    return head.eval().requires_grad_(False)  # type: ignore[no-any-return]
