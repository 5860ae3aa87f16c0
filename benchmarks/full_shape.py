"""Random content at the full shape of Qwen3.6-35B-A3B, in the formats of the card's fp8-head branch."""

from typing import Any

GROUP, BLOCK = 16, 128


def recipe() -> dict[str, Any]:
    """The card's fp8-head branch: NVFP4 on experts and attention projections, FP8_BLOCK on the head."""
    from compressed_tensors.quantization import preset_name_to_scheme

    nvfp4, fp8 = (
        preset_name_to_scheme(name, [target]).model_dump(mode="json")
        for name, target in (("NVFP4", r"re:.*(expert\w*|self_attn)\..*_proj$"), ("FP8_BLOCK", "re:.*lm_head$"))
    )
    groups = {"a": nvfp4 | {"format": "nvfp4-pack-quantized"}, "b": fp8 | {"format": "float-quantized"}}
    return {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}


class Content:
    """Random stored tensors, cut from one block of random bytes: the sandbox of a disk, not of a language."""

    def __init__(self, seed: int = 0) -> None:
        import torch

        self._random = torch.Generator().manual_seed(seed)
        self._bytes = torch.randint(0, 256, (2**28,), dtype=torch.uint8, generator=self._random)

    def raw(self, *shape: int) -> Any:
        """Random bytes."""
        import math

        import torch

        begin = int(torch.randint(0, 2**20, (1,), generator=self._random))
        return self._bytes[begin : begin + math.prod(shape)].clone().view(shape)

    def bf16(self, *shape: int, scale: float = 0.02) -> Any:
        """Values of about `scale`, some rows repeated where the tensor is large."""
        import torch

        rows = min(shape[0], 4096)
        some = (torch.randn(rows, *shape[1:], generator=self._random) * scale).bfloat16()
        return some if rows == shape[0] else some.repeat(-(-shape[0] // rows), *(1 for _ in shape[1:]))[: shape[0]]

    def nvfp4(self, name: str, out: int, columns: int) -> dict[str, Any]:
        """One weight of about 0.02: random FP4 under local scales between 0.5 and 1 and a global scale of 100."""
        import torch

        local = (self.raw(out, columns // GROUP) % 8 + 0x30).view(torch.float8_e4m3fn)
        return {
            f"{name}.weight_packed": self.raw(out, columns // 2),
            f"{name}.weight_scale": local,
            f"{name}.weight_global_scale": torch.tensor([100.0]),
            f"{name}.input_global_scale": torch.tensor([200.0]),
        }


def stored(content: Content, name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """What the recipe stores for one parameter."""
    import torch

    module = name.removesuffix(".weight")
    if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        halves = ("gate_proj", "up_proj") if "gate_up" in name else ("down_proj",)
        out = shape[1] // len(halves)
        places = (f"{module.rpartition('.')[0]}.{e}.{half}" for e in range(shape[0]) for half in halves)
        return {part: t for place in places for part, t in content.nvfp4(place, out, shape[2]).items()}
    if (".self_attn." in name or ".shared_expert." in name) and name.endswith("_proj.weight"):
        return content.nvfp4(module, *shape)
    if module == "lm_head":
        grid = (-(-shape[0] // BLOCK), -(-shape[1] // BLOCK))
        values = content.raw(2**14, shape[1]) % 120  # finite and positive in FP8
        head = values.repeat(-(-shape[0] // 2**14), 1)[: shape[0]].view(torch.float8_e4m3fn)
        return {f"{module}.weight": head, f"{module}.weight_scale": torch.full(grid, 1e-4, dtype=torch.bfloat16)}
    return {name: content.bf16(*shape)}
