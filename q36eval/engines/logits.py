"""From final hidden states to logits: a product with the head, and what some architectures do before and after it."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from q36eval.checkpoints.architecture import Outline
from q36eval.engines.numerics import float32_logits
from q36eval.errors import UsageError


@dataclass(frozen=True)
class LogitsForm:
    """`softcap * tanh(x / softcap)` of `x = (states @ weight.T + bias) * scale / divisor`; what is not set is left out.

    In transformers 5.17: Granite divides by `logits_scaling`, Cohere multiplies by `logit_scale`, Gemma 2 caps at
    `final_logit_softcapping`; Phi's head has a bias.
    """

    scale: float | None = None
    divisor: float | None = None
    softcap: float | None = None

    @classmethod
    def of(cls, config: Any) -> "LogitsForm":
        """The form that a transformers config names; `check_form` holds it against the model's own forward."""
        return cls(
            getattr(config, "logit_scale", None),
            getattr(config, "logits_scaling", None),
            getattr(config, "final_logit_softcapping", None),
        )

    def logits(self, states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Float32 logits [T, V] of states [T, H] through a head [V, H] and its bias [V]."""
        logits = float32_logits(states, weight)
        if bias is not None:
            logits = logits + bias.float()
        if self.scale is not None:
            logits = logits * self.scale
        if self.divisor is not None:
            logits = logits / self.divisor
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits


LOUDNESS = 30
"""By how much the head is multiplied for the check: a cap does not show in small logits."""
TOKENS = 4
TOLERANCE = 1e-4
"""Of the largest logit: float32 sums differ by their order."""


@torch.inference_mode()
def check_form(model: Any, outline: Outline, form: LogitsForm) -> None:
    """Compare the form with the model's own forward in float32: base replaced by given states, head made louder.

    Raises:
        UsageError: they differ, so figures from hidden states would be of another model.
    """
    head = model.get_submodule(outline.head)
    weight = head.weight.float() * LOUDNESS
    bias = None if head.bias is None else head.bias.float()
    states = torch.randn(TOKENS, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight.device)
    own = _own_forward(model, outline, states, weight, bias)
    ours = form.logits(states, weight, bias)
    if not torch.allclose(own, ours, rtol=0, atol=TOLERANCE * float(own.abs().max())):
        raise UsageError(
            "architecture-unsupported",
            f"{type(model).__name__} turns hidden states into logits in a way that is not known here "
            f"(they differ by {float((own - ours).abs().max()):.3g}).",
        )


class _Given(nn.Module):
    """A base model that answers with given hidden states, and with the real one's settings."""

    def __init__(self, base: nn.Module, states: Tensor) -> None:
        super().__init__()
        object.__setattr__(self, "_base", base)
        self._states = states

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(object.__getattribute__(self, "_base"), name)

    def forward(self, *_arguments: Any, **_settings: Any) -> Any:
        from transformers.modeling_outputs import MoeModelOutputWithPast

        return _Answer(MoeModelOutputWithPast(last_hidden_state=self._states.unsqueeze(0)))


class _Answer:
    """An output of a base model of which only the hidden states are there."""

    def __init__(self, output: Any) -> None:
        self._output = output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name, None)

    def __getitem__(self, key: Any) -> Any:
        return self._output[key]


def _own_forward(model: Any, outline: Outline, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    shell = copy.copy(model)  # shares the parameters
    shell._modules = dict(model._modules)
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    head.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        head.bias = nn.Parameter(bias, requires_grad=False)
    shell._modules[outline.head] = head
    shell._modules[outline.base] = _Given(model._modules[outline.base], states)
    ids = torch.zeros(1, len(states), dtype=torch.long, device=states.device)
    logits: Tensor = type(shell).forward(shell, input_ids=ids, use_cache=False).logits[0]
    return logits.float()
