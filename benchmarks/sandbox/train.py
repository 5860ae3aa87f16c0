"""Train the sandbox's BF16 reference.

`python -m benchmarks.sandbox.train --out DIR` on one GPU, or under torchrun on several.

Everything is drawn from seeded generators (`canaries.generators`, and those beside this file). What it prints is kept
beside the weights. GPU kernels are not bit-reproducible, so a second run gives an equal recipe, not equal bytes.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone uses)

from benchmarks.sandbox.architecture import text_config
from benchmarks.sandbox.ladder import print_ladder
from benchmarks.sandbox.mixture import ANSWER_WEIGHTS, MIXTURES, PROMPT_WEIGHTS, Pool, build_pool, load_pool
from benchmarks.sandbox.optimizer import MasterOptimizer

BUCKETS = (64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 4096)
AUX_WEIGHT = 0.01
STEPS_PER_CLOCK = 10


def parse_arguments() -> argparse.Namespace:
    """The command line; every setting that changes the result is here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, default=Path("data/sandbox/bf16"))
    parser.add_argument("--pool", type=Path, default=Path("/tmp/pool"))
    parser.add_argument("--pool-tokens", type=float, default=120e6)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--seconds", type=float, default=420.0, help="training time; the schedule follows the clock")
    parser.add_argument("--max-steps", type=int, default=10**9)
    parser.add_argument("--layers", default="LLFLL")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--micro-tokens", type=int, default=32768)
    parser.add_argument("--micro-steps", type=int, default=2)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mixture", choices=sorted(MIXTURES), default="broad")
    parser.add_argument("--skip-ladder", action="store_true")
    parser.add_argument("--start-from", type=Path, help="folder whose weights to start from instead of random ones")
    parser.add_argument("--overrides", type=json.loads, default={}, help="JSON of config overrides")
    return parser.parse_args()


class Batches:
    """Endless batches of equal padded length from the pool: every document once per epoch, order from the seed."""

    def __init__(self, pool: Pool, kinds: list[str], tokens: int, seed: int, rank: int, ranks: int) -> None:
        self.pool, self.tokens, self.rank, self.ranks = pool, tokens, rank, ranks
        self.prompt_weight = np.asarray([PROMPT_WEIGHTS.get(kind, 0.05) for kind in kinds], dtype=np.float32)
        self.answer_weight = np.asarray([ANSWER_WEIGHTS.get(kind, 1.0) for kind in kinds], dtype=np.float32)
        self.rng = np.random.default_rng(seed)
        self.bucket_of = np.searchsorted(np.asarray(BUCKETS), pool.lengths)
        self.queue: list[np.ndarray[Any, Any]] = []
        self.epochs = 0

    def _refill(self) -> None:
        batches = []
        for bucket, length in enumerate(BUCKETS):
            members = np.flatnonzero(self.bucket_of == bucket)
            self.rng.shuffle(members)
            size = max(1, self.tokens // length)
            batches += [members[i : i + size] for i in range(0, len(members), size)]
        order = self.rng.permutation(len(batches))
        self.queue = [batches[i] for i in order if i % self.ranks == self.rank]
        self.epochs += 1

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids [B, L] and the loss weight of predicting each token [B, L]."""
        if not self.queue:
            self._refill()
        members = self.queue.pop()
        length = BUCKETS[self.bucket_of[members[0]]]
        ids = np.zeros((len(members), length), dtype=np.int64)
        weights = np.zeros((len(members), length), dtype=np.float32)
        for row, i in enumerate(members):
            begin, end = self.pool.offsets[i], self.pool.offsets[i + 1]
            ids[row, : end - begin] = self.pool.tokens[begin:end]
            weights[row, : end - begin] = self.answer_weight[self.pool.kinds[i]]
            weights[row, : self.pool.answer_starts[i]] = self.prompt_weight[self.pool.kinds[i]]
        if torch.cuda.is_available():
            return torch.from_numpy(ids).pin_memory(), torch.from_numpy(weights).pin_memory()
        return torch.from_numpy(ids), torch.from_numpy(weights)


class RouterLosses:
    """Collects each router's load-balancing loss (Switch Transformer, arXiv 2101.03961, eq. 4, over top-k choices)."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.losses: list[torch.Tensor] = []
        for name, module in model.named_modules():
            if name.endswith("mlp.gate"):
                module.register_forward_hook(self._collect)

    def _collect(self, module: Any, inputs: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        logits, _, chosen = output
        probabilities = logits.float().softmax(-1).mean(0)
        experts = probabilities.numel()
        countable = chosen.flatten().int() if chosen.is_cuda else chosen.flatten().float()
        load = torch.histc(countable, bins=experts, min=0, max=experts - 1).float() / chosen.numel()
        self.losses.append(experts * (load * probabilities).sum())

    def pop(self) -> torch.Tensor:
        total = torch.stack(self.losses).mean()
        self.losses.clear()
        return total


def weighted_loss(model: Any, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum of weighted next-token cross-entropies in nats."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    logits = model.lm_head(hidden).float()
    losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return (losses * weights[:, 1:].flatten()).sum()


def learning_rate_scale(progress: float, step: int) -> float:
    """Warm-up over 100 steps, constant to 45 % of the time, then linear to 2 %."""
    return min(1.0, (step + 1) / 100) * min(1.0, max(0.02, (1 - progress) / 0.55))


def build_model(arguments: argparse.Namespace, device: torch.device) -> Any:
    """The model with transformers' own initialisation, in BF16 with grouped matrix products for the experts."""
    from transformers import Qwen3_5MoeForCausalLM

    torch.manual_seed(arguments.seed)
    config = text_config(arguments.layers, arguments.experts, **arguments.overrides)
    model = Qwen3_5MoeForCausalLM(config).to(device=device, dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        if name.endswith("mlp.gate.weight"):
            torch.nn.init.normal_(parameter, std=0.02)
    if arguments.start_from is not None:
        from safetensors.torch import load_file

        model.load_state_dict(fused(load_file(arguments.start_from / "model.safetensors")), strict=True)
    if device.type == "cuda":
        model.set_experts_implementation("grouped_mm")
    return model


def fused(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Per-expert matrices, as transformers saves them, joined into the fused parameters it computes with."""
    experts: dict[str, dict[tuple[int, str], torch.Tensor]] = {}
    tensors = {}
    for name, tensor in stored.items():
        prefix, separator, rest = name.partition(".mlp.experts.")
        if separator and rest[0].isdigit():
            index, projection, _ = rest.split(".")
            experts.setdefault(prefix + separator, {})[int(index), projection] = tensor
        else:
            tensors[name] = tensor
    for prefix, parts in experts.items():
        count = 1 + max(index for index, _ in parts)
        halves = [torch.cat([parts[i, "gate_proj"], parts[i, "up_proj"]]) for i in range(count)]
        tensors[prefix + "gate_up_proj"] = torch.stack(halves)
        tensors[prefix + "down_proj"] = torch.stack([parts[i, "down_proj"] for i in range(count)])
    return tensors


def train(arguments: argparse.Namespace, model: Any, batches: Batches, ranks: int, rank: int) -> None:
    """Train until the clock or `--max-steps` says stop; the learning rate follows whichever comes first."""
    device = next(model.parameters()).device
    routers = RouterLosses(model)
    optimizer = MasterOptimizer(
        model, muon_lr=arguments.muon_lr, adam_lr=arguments.adam_lr, weight_decay=arguments.weight_decay
    )
    started, seen, step, spent = time.time(), 0, 0, 0.0
    while True:
        if step % STEPS_PER_CLOCK == 0:
            spent = clock(started, arguments.seconds, device, ranks)
        progress = max(spent, step / arguments.max_steps)
        if progress >= 1:
            break
        loss_sum, weight_sum = torch.zeros((), device=device), torch.zeros((), device=device)
        for _ in range(arguments.micro_steps):
            ids, weights = (tensor.to(device, non_blocking=True) for tensor in batches.next())
            loss = weighted_loss(model, ids, weights)
            torch.autograd.backward(loss + AUX_WEIGHT * weights.sum() * routers.pop())
            loss_sum += loss.detach()
            weight_sum += weights[:, 1:].sum()
            seen += ids.numel()
        apply_gradients(model, optimizer, loss_sum, weight_sum, learning_rate_scale(progress, step), ranks)
        if rank == 0 and (step % 100 == 0 or step == 20):
            rate = seen * ranks / (time.time() - started)
            mean = float(loss_sum / weight_sum)
            print(
                f"step {step:6d}  {progress:6.1%}  loss {mean:.4f}  {rate / 1e3:.0f} k tokens/s  "
                f"{seen * ranks / 1e6:.0f} M tokens  epoch {batches.epochs}",
                flush=True,
            )
        step += 1


def clock(started: float, seconds: float, device: torch.device, ranks: int) -> float:
    """Share of the training time that is over, the same on every rank."""
    spent = torch.tensor((time.time() - started) / seconds, device=device)
    if ranks > 1:
        torch.distributed.broadcast(spent, 0)
    return float(spent)


def apply_gradients(
    model: Any, optimizer: MasterOptimizer, loss_sum: torch.Tensor, weight_sum: torch.Tensor, scale: float, ranks: int
) -> None:
    """Average over ranks and weights, clip at norm 1, step."""
    gradients = [parameter.grad.float() for parameter in optimizer.params if parameter.grad is not None]
    if ranks > 1:
        flat = torch.cat([gradient.flatten() for gradient in gradients] + [torch.stack([loss_sum, weight_sum])])
        torch.distributed.all_reduce(flat)
        loss_sum.copy_(flat[-2])
        weight_sum.copy_(flat[-1])
        parts = torch.split(flat[:-2], [gradient.numel() for gradient in gradients])
        gradients = [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]
    norm = torch.stack(torch._foreach_norm(gradients)).norm() / weight_sum
    factor = 1 / weight_sum * (1 / norm).clamp(max=1.0)
    torch._foreach_mul_(gradients, factor)
    optimizer.step(scale, gradients)
    model.zero_grad(set_to_none=True)


def save(model: Any, arguments: argparse.Namespace, out: Path) -> None:
    """Write a complete Hugging Face folder: weights, config, generation config, tokenizer and chat template."""
    from transformers import AutoTokenizer, GenerationConfig

    out.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    stops = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=stops, pad_token_id=stops[1])
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    """Pool, training, the folder, and the damage ladder over test draws."""
    arguments = parse_arguments()
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu")
    if ranks > 1:
        torch.cuda.set_device(device)
        torch.distributed.init_process_group("nccl")
    torch.backends.cuda.matmul.allow_tf32 = True
    pool = prepared_pool(arguments, rank, ranks)
    model = build_model(arguments, device)
    if rank == 0:
        print(json.dumps({k: str(v) for k, v in vars(arguments).items()}))
        print(f"{sum(p.numel() for p in model.parameters())} parameters; {int(pool.offsets[-1]) / 1e6:.1f} M tokens")
    batches = Batches(pool, sorted(MIXTURES[arguments.mixture]), arguments.micro_tokens, arguments.seed, rank, ranks)
    train(arguments, model, batches, ranks, rank)
    if rank == 0:
        save(model, arguments, arguments.out)
    if rank == 0 and not arguments.skip_ladder:
        print_ladder(model, arguments.out)


def prepared_pool(arguments: argparse.Namespace, rank: int, ranks: int) -> Pool:
    """Rank 0 builds the pool unless it is there; everyone reads it."""
    shards = sorted(arguments.pool.glob("shard-*.npz"))
    if not shards and rank == 0:
        started = time.time()
        build_pool(
            arguments.tokenizer / "tokenizer.json",
            MIXTURES[arguments.mixture],
            int(arguments.pool_tokens),
            seed=arguments.seed,
            workers=arguments.workers,
            out=arguments.pool,
        )
        print(f"pool built in {time.time() - started:.0f} s", flush=True)
    if ranks > 1:
        torch.distributed.barrier()
    return load_pool(sorted(arguments.pool.glob("shard-*.npz")))


if __name__ == "__main__":
    main()
