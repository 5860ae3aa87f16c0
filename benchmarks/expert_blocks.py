"""Tiles of the kernel that multiplies few rows by many experts, timed: `python benchmarks/expert_blocks.py`.

One layer at the full shape (256 experts, 2,048 wide, 512 inside), random weights, plain and packed FP4, at 64 and 256
rows of 8 experts. Prints microseconds of both products together and the share of 4.3 TB/s that reading the weights in
that time comes to. It needs a GPU.
"""

import itertools
import statistics

import torch

from q36eval.checkpoints import _expert_kernels as kernels
from q36eval.checkpoints.experts import Rows

EXPERTS, WIDTH, INNER, TOP_K = 256, 2048, 512, 8
BANDWIDTH = 4.3e12


def main() -> None:
    """Time every tile."""
    torch.manual_seed(0)
    shapes = ((2 * INNER, WIDTH), (WIDTH, INNER))
    plain = [torch.randn(EXPERTS, out, width, device="cuda", dtype=torch.bfloat16) for out, width in shapes]
    packed = [
        (
            torch.randint(0, 256, (EXPERTS * out, width // 2), dtype=torch.uint8, device="cuda"),
            torch.randint(40, 60, (EXPERTS * out, width // 16), dtype=torch.uint8, device="cuda").view(
                torch.float8_e4m3fn
            ),
            torch.full((EXPERTS * 2,), 100.0, device="cuda"),
        )
        for out, width in shapes
    ]
    print("| weights | rows | n × k, stages, warps | µs | of 4.3 TB/s |\n|---|---|---|---|---|")
    for is_packed, rows in itertools.product((False, True), (64, 256)):
        chosen = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(rows)]).cuda()
        order = Rows(chosen, EXPERTS)
        inputs = [torch.randn(rows * TOP_K, width, device="cuda").bfloat16() for _, width in shapes]
        active = len(chosen.unique())
        tiles = [(64, 128, 3, 4), (64, 128, 4, 4), (128, 128, 3, 4), (64, 256, 2, 4), (32, 256, 3, 4), (128, 64, 4, 4)]
        for n, k, stages, warps in tiles:

            def both(n: int = n, k: int = k, stages: int = stages, warps: int = warps) -> None:
                for (out, width), x, weight, parts in zip(shapes, inputs, plain, packed, strict=True):  # noqa: B023
                    result = torch.empty(len(x), out, dtype=torch.bfloat16, device="cuda")
                    own = parts if is_packed else (weight, weight, weight)  # noqa: B023
                    kernels.products[EXPERTS, out // n](
                        x, *own, order.ends, result, out // 2, 0, out,  # noqa: B023
                        outputs=out, inputs=width, is_packed=is_packed, divides=True,  # noqa: B023
                        block_m=16, block_n=n, block_k=k, num_stages=stages, num_warps=warps,
                    )  # fmt: skip

            try:
                both()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for _ in range(8):
                        both()
                taken = []
                for _ in range(5):
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    begin.record()
                    graph.replay()
                    end.record()
                    torch.cuda.synchronize()
                    taken.append(begin.elapsed_time(end) / 8 * 1e-3)
            except Exception as error:
                print(f"| {is_packed} | {rows} | {n} × {k}, {stages}, {warps} | {type(error).__name__} | |")
                continue
            seconds = statistics.median(taken)
            weights = active * sum(out * width for out, width in shapes) * (0.5625 if is_packed else 2)
            name = "packed" if is_packed else "BF16"
            print(
                f"| {name} | {rows} | {n} × {k}, {stages}, {warps} | {seconds * 1e6:.0f} "
                f"| {weights / seconds / BANDWIDTH:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
