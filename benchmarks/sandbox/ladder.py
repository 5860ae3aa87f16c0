"""The damage ladder: what INT4, INT3 and INT2 experts cost on test draws, measured by teacher forcing.

An item counts as right when greedy decoding would give exactly its answer, that is when every answer token is the
argmax under teacher forcing.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone uses)

from benchmarks.sandbox.mixture import TOKEN_SHARES, Renderer, document, encode

GROUP = 32
ITEMS_PER_KIND = 200
LADDER_BITS = (4, 3, 2)


def round_to_integers(weight: torch.Tensor, bits: int, group: int = GROUP) -> torch.Tensor:
    """Symmetric round-to-nearest of `weight` [..., columns] in groups of columns, back in its own dtype."""
    groups = weight.float().reshape(*weight.shape[:-1], -1, group)
    largest = 2 ** (bits - 1) - 1
    scale = (groups.abs().amax(-1, keepdim=True) / (largest + 0.5)).clamp(min=1e-12)
    rounded: torch.Tensor = (groups / scale).round().clamp(-largest - 1, largest) * scale
    return rounded.reshape(weight.shape).to(weight.dtype)


def fp8_blocks(weight: torch.Tensor, block: int = 128) -> torch.Tensor:
    """`weight` [rows, columns] rounded to FP8 E4M3 with one scale a block, back in its own dtype."""
    rounded = weight.float().clone()
    for row in range(0, weight.shape[0], block):
        for column in range(0, weight.shape[1], block):
            tile = rounded[row : row + block, column : column + block]
            scale = (tile.abs().amax() / torch.finfo(torch.float8_e4m3fn).max).clamp(min=1e-12)
            tile.copy_((tile / scale).to(torch.float8_e4m3fn).float() * scale)
    return rounded.to(weight.dtype)


def make_rung(
    reference: Path,
    folder: Path,
    damaged: Callable[[str], bool],
    damage: Callable[[torch.Tensor], torch.Tensor],
) -> Path:
    """The reference with `damage` done to the tensors whose names are `damaged`, as a complete checkpoint folder."""
    from safetensors.torch import load_file, save_file

    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(reference, folder)
    tensors = load_file(folder / "model.safetensors")
    changed = {name: damage(tensor).contiguous() if damaged(name) else tensor for name, tensor in tensors.items()}
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@torch.no_grad()
def damage_experts(model: Any, bits: int) -> dict[str, torch.Tensor]:
    """Round all routed experts in place; returns the originals by parameter name."""
    originals = {}
    for name, parameter in model.named_parameters():
        if "mlp.experts." in name:
            originals[name] = parameter.detach().clone()
            parameter.copy_(round_to_integers(parameter, bits))
    return originals


def test_items(tokenizer: Any, items_per_kind: int) -> dict[str, list[tuple[list[int], int]]]:
    """Tokenised test draws by kind."""
    renderer = Renderer()
    items = {}
    for kind in sorted(TOKEN_SHARES):
        rng = random.Random(f"ladder-{kind}")
        items[kind] = [encode(tokenizer, document(kind, rng, "test", renderer)) for _ in range(items_per_kind)]
    return items


@torch.no_grad()
def score(model: Any, items: list[tuple[list[int], int]], budget: int = 32768) -> tuple[list[bool], list[Any]]:
    """Exact match per item, and the answer tokens' log-probs [T, V] per item in order."""
    device = next(model.parameters()).device
    order = sorted(range(len(items)), key=lambda i: len(items[i][0]))
    matches: list[bool] = [False] * len(items)
    log_probs: list[Any] = [None] * len(items)
    while order:
        longest = len(items[order[-1]][0])
        chosen = [order.pop() for _ in range(min(len(order), max(1, budget // longest)))]
        ids = torch.zeros(len(chosen), longest, dtype=torch.long)
        for row, i in enumerate(chosen):
            ids[row, : len(items[i][0])] = torch.tensor(items[i][0])
        hidden = model.model(input_ids=ids.to(device), use_cache=False).last_hidden_state
        for row, i in enumerate(chosen):
            tokens, start = items[i]
            start = max(start, 1)
            rows = F.log_softmax(model.lm_head(hidden[row, start - 1 : len(tokens) - 1]).float(), -1)
            matches[i] = bool((rows.argmax(-1).cpu() == torch.tensor(tokens[start:])).all())
            log_probs[i] = rows
    return matches, log_probs


def print_ladder(model: Any, folder: Path, items_per_kind: int = ITEMS_PER_KIND) -> None:
    """Print, and write as `ladder.json`, exact match and KL(BF16 || damaged) by kind for BF16, INT4, INT3 and INT2."""
    from tokenizers import Tokenizer

    model.eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    table: dict[str, dict[str, float]] = {}
    items = test_items(tokenizer, items_per_kind)
    print(f"{'kind':24s} {'BF16':>7s} " + " ".join(f"INT{bits:d}    KL{bits:d}     " for bits in LADDER_BITS))
    for kind, tested in items.items():
        matches, reference = score(model, tested)
        row = {"bf16": sum(matches) / len(matches), "tokens": float(sum(len(t) for t, _ in tested) / len(tested))}
        labelled = zip(reference, tested, strict=True)
        nll = -sum(float(rows[range(len(rows)), ids[-len(rows) :]].sum()) for rows, (ids, _) in labelled)
        row["nll"] = nll / sum(len(rows) for rows in reference)
        for bits in LADDER_BITS:
            originals = damage_experts(model, bits)
            damaged_matches, damaged = score(model, tested)
            with torch.no_grad():
                for name, original in originals.items():
                    model.get_parameter(name).copy_(original)
            total = sum(float((p.exp() * (p - q)).sum()) for p, q in zip(reference, damaged, strict=True))
            row[f"int{bits}"] = sum(damaged_matches) / len(damaged_matches)
            row[f"kl{bits}"] = total / sum(len(p) for p in reference)
        table[kind] = row
        cells = " ".join(f"{row[f'int{b}']:7.1%} {row[f'kl{b}']:.2e}" for b in LADDER_BITS)
        print(f"{kind:24s} {row['bf16']:7.1%} {cells}  nll {row['nll']:.3f}  {row['tokens']:.0f} tokens", flush=True)
    (folder / "ladder.json").write_text(json.dumps(table, indent=1))
