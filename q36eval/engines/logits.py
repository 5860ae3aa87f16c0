"""From final hidden states to logits: a product with the head, plus the scaling of some architectures."""

import copy
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from q36eval.checkpoints.architecture import base_of
from q36eval.engines.numerics import float32_logits
from q36eval.errors import UsageError


@dataclass(frozen=True)
class LogitsForm:
    """`softcap * tanh(x / softcap)` of `x = (states @ weight.T + bias) * scale / divisor`; unset parts are left out.

    In transformers 5.17: Granite divides by `logits_scaling`, Cohere multiplies by `logit_scale`, Gemma 2 caps at
    `final_logit_softcapping`; Phi's head has a bias.
    """

    scale: float | None = None
    divisor: float | None = None
    softcap: float | None = None

    @classmethod
    def of(cls, config: Any) -> "LogitsForm":
        """The form from a transformers config; `check_form` compares it with the model's own forward."""
        names = ("logit_scale", "logits_scaling", "final_logit_softcapping")
        return cls(*(getattr(config, name) if hasattr(type(config), name) else None for name in names))

    def of_products(self, logits: Tensor) -> Tensor:
        """The logits of a head's float32 products [T, V], its bias included."""
        if self.scale is not None:
            logits = logits * self.scale
        if self.divisor is not None:
            logits = logits / self.divisor
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits


WEIGHT, BIAS, FORM = "head", "head_bias", "logits_form"
"""The names of a head's tensors in a reference pack; the last two are optional."""


@dataclass(frozen=True)
class OutputHead:
    """The map from final hidden states to logits: a weight [V, H], an optional bias [V], and the form of the logits."""

    weight: Tensor
    bias: Tensor | None = None
    form: LogitsForm = field(default_factory=LogitsForm)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "OutputHead":
        """The head in these tensors of a pack."""
        values = tensors[FORM].tolist() if FORM in tensors else []
        form = LogitsForm(*(None if math.isnan(value) else value for value in values))
        return cls(tensors[WEIGHT], tensors.get(BIAS), form)

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors in a pack."""
        kept = {WEIGHT: self.weight} | ({} if self.bias is None else {BIAS: self.bias})
        values = astuple(self.form)
        if any(value is not None for value in values):
            kept[FORM] = torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)
        return kept

    def to(self, device: torch.device | str) -> "OutputHead":
        """The head on that device."""
        return OutputHead(self.weight.to(device), None if self.bias is None else self.bias.to(device), self.form)

    def logits(self, states: Tensor) -> Tensor:
        """Float32 logits [T, V] of final hidden states [T, H], products accumulated in float32."""
        products = float32_logits(states, self.weight)
        return self.form.of_products(products if self.bias is None else products + self.bias.float())


@dataclass(frozen=True)
class OwnHead:
    """The output projection of a model in this process, with the branch's quantization of inputs."""

    module: Any
    form: LogitsForm

    @classmethod
    def of(cls, model: Any) -> "OwnHead":
        """The head of a transformers model."""
        return cls(model.get_output_embeddings(), LogitsForm.of(model.config))

    @property
    def quantizes(self) -> bool:
        """Whether inputs are quantized."""
        return getattr(self.module, "quantize_input", None) is not None

    @property
    def plain(self) -> OutputHead:
        """The head without the quantization of its inputs."""
        weight, bias = self.module.weight, getattr(self.module, "bias", None)
        weight = weight.detach() if weight.requires_grad else weight  # itself, since what is made of it is kept
        return OutputHead(weight, None if bias is None else bias.detach(), self.form)

    def logits(self, states: Tensor) -> Tensor:
        """Float32 logits [T, V] of final hidden states [T, H], products accumulated in float32."""
        return self.plain.logits(self.module.quantize_input(states) if self.quantizes else states)

    def rounded_logits(self, states: Tensor) -> Tensor:
        """Logits as the model's own forward computes them: products in the model's dtype."""
        return self.form.of_products(self.module(states).float())


LOUDNESS = 30
"""The factor on the head for the check: a cap does not show in small logits."""
TOKENS, ROWS = 4, 64
"""Hidden states and rows of the head to compare: the form is the same for every logit."""
TOLERANCE = 1e-4
"""As a share of the largest logit: float32 sums differ by their order."""


@torch.inference_mode()
def check_form(model: Any, form: LogitsForm) -> None:
    """Compare the form with the model's own forward in float32, with given states and an enlarged head.

    Raises:
        UsageError: they differ, so figures from hidden states would describe another model.
    """
    head = model.get_output_embeddings()
    weight = head.weight[:ROWS].float() * LOUDNESS
    bias = None if head.bias is None else head.bias[:ROWS].float()
    states = torch.randn(TOKENS, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight.device)
    own = _own_forward(model, states, weight, bias)
    ours = OutputHead(weight, bias, form).logits(states)
    if not torch.allclose(own, ours, rtol=0, atol=TOLERANCE * float(own.abs().max())):
        raise UsageError(
            "architecture-unsupported",
            f"{type(model).__name__} computes its logits from hidden states by an unknown formula: ours differ from "
            f"its own by {float((own - ours).abs().max()):.3g}.",
        )


class _Given(nn.Module):
    """A base model that returns given hidden states, with the real one's settings."""

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
    """An output of a base model with only hidden states."""

    def __init__(self, output: Any) -> None:
        self._output = output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name, None)

    def __getitem__(self, key: Any) -> Any:
        return self._output[key]


def _own_forward(model: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    shell = copy.copy(model)  # shares the parameters
    shell._modules = dict(model._modules)
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    head.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        head.bias = nn.Parameter(bias, requires_grad=False)
    shell.set_output_embeddings(head)
    base = base_of(model)
    name = next(name for name, child in model.named_children() if child is base)
    shell._modules[name] = _Given(base, states)
    ids = torch.zeros(1, len(states), dtype=torch.long, device=states.device)
    logits: Tensor = type(shell).forward(shell, input_ids=ids, use_cache=False).logits[0]
    return logits.float()
