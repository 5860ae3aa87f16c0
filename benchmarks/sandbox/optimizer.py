"""Muon for matrices, AdamW for the rest, on float32 masters of BF16 parameters.

Muon (K. Jordan et al., 2024, "Muon: an optimizer for hidden layers in neural networks"): momentum whose matrix is
orthogonalised by a quintic Newton-Schulz iteration. Batched here over the expert dimension.
"""

import torch

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Approximate nearest semi-orthogonal matrices of `matrices` [..., rows, columns]."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.mT if tall else matrices).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: torch.Tensor = (x.mT if tall else x).float()
    return result


class MasterOptimizer:
    """Steps float32 masters with the gradients of BF16 parameters, then writes the masters back."""

    def __init__(
        self, model: torch.nn.Module, *, muon_lr: float = 0.02, adam_lr: float = 3e-3, weight_decay: float = 0.02
    ) -> None:
        named = list(model.named_parameters())
        self.params: list[torch.Tensor] = [parameter for _, parameter in named]
        self.masters = [parameter.detach().float().clone() for parameter in self.params]
        self.is_matrix = [_is_hidden_matrix(name, parameter) for name, parameter in named]
        self.momenta = [
            torch.zeros_like(master) if matrix else None
            for master, matrix in zip(self.masters, self.is_matrix, strict=True)
        ]
        self.groups: dict[tuple[int, int], list[int]] = {}
        for i, (master, matrix) in enumerate(zip(self.masters, self.is_matrix, strict=True)):
            if matrix:
                self.groups.setdefault((master.shape[-2], master.shape[-1]), []).append(i)
        others = [
            master.requires_grad_() for master, matrix in zip(self.masters, self.is_matrix, strict=True) if not matrix
        ]
        self.adam = torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=others[0].is_cuda)
        self.muon_lr, self.adam_lr, self.weight_decay = muon_lr, adam_lr, weight_decay

    @torch.no_grad()
    def step(self, scale: float, gradients: list[torch.Tensor]) -> None:
        """One step at learning rates multiplied by `scale`; `gradients` [float32] in the order of `params`."""
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * scale
        for master, momentum, gradient in zip(self.masters, self.momenta, gradients, strict=True):
            if momentum is None:
                master.grad = gradient
            else:
                momentum.lerp_(gradient, 0.05)
                gradient.lerp_(momentum, 0.95)
        for (rows, columns), members in self.groups.items():
            # one batched iteration per matrix shape: experts and projections of all layers together
            stacked = torch.cat([gradients[i].reshape(-1, rows, columns) for i in members])
            counts = [gradients[i].numel() // (rows * columns) for i in members]
            updates = torch.split(orthogonalize(stacked), counts)
            rate = self.muon_lr * scale
            for i, update in zip(members, updates, strict=True):
                master = self.masters[i]
                master.mul_(1 - rate * self.weight_decay)
                master.add_(update.view_as(master), alpha=-rate * max(1.0, rows / columns) ** 0.5)
        self.adam.step()
        torch._foreach_copy_(self.params, self.masters)


def _is_hidden_matrix(name: str, parameter: torch.Tensor) -> bool:
    if any(part in name for part in ("embed_tokens", "lm_head", "conv1d", "mlp.gate.", "shared_expert_gate")):
        return False
    return parameter.ndim >= 2 and min(parameter.shape[-2:]) > 8
