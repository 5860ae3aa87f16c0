"""Train a draft head (MTP) for the sandbox's reference, whose own weights stay as they are.

`python -m benchmarks.sandbox.train_draft --out data/sandbox/draft` on a CPU or a GPU. The head learns what the frozen
model predicts a token further than it has read: its loss is the cross-entropy with the model's own distribution, which
is least where all guesses are accepted. The head is a file of its own: put beside the reference's files
(`model_mtp.safetensors`) it makes a checkpoint that ships one, and no other figure moves.
"""

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.sandbox.mixture import TOKEN_SHARES, build_pool
from benchmarks.sandbox.train import Batches
from q36eval.checkpoints import load_model
from q36eval.checkpoints.draft import DraftHead, draft_config

GUESSES = 2
LATER_GUESS = 0.5
"""The weight of the second guess beside the first."""


def parse_arguments() -> argparse.Namespace:
    """The command line; every setting that changes the result is here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=Path("data/sandbox/bf16"))
    parser.add_argument("--pool-tokens", type=float, default=3e6)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=900.0, help="training time; the schedule follows the clock")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of a batch")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def guessed(head: Any, states: Tensor, embedded: Tensor) -> list[Tensor]:
    """The head's states [B, T - k, H] of guess k = 1, 2, …, from the model's states and the texts' tokens [B, T, H]."""
    outputs = []
    for guess in range(1, GUESSES + 1):
        joined = torch.cat(
            [head.pre_fc_norm_embedding(embedded[:, guess:]), head.pre_fc_norm_hidden(states[:, :-1])], dim=-1
        )
        states = head(inputs_embeds=head.fc(joined), use_cache=False).last_hidden_state
        outputs.append(states)
    return outputs


def losses(model: Any, head: Any, ids: Tensor, read: Tensor) -> tuple[Tensor, list[float]]:
    """The loss in nats, and the mean acceptance of every guess, over tokens that are `read` [B, T], no padding."""
    with torch.no_grad():
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state
        target = model.lm_head(states).float().softmax(-1)
        embedded = model.model.embed_tokens(ids).float()
    total, shares = torch.zeros(()), []
    for guess, drafted in enumerate(guessed(head, states.float(), embedded), 1):
        q = torch.nn.functional.linear(drafted, model.lm_head.weight.float()).log_softmax(-1)
        p, wanted = target[:, guess:], read[:, guess:].float()
        cross = -(p * q).sum(-1)
        total = total + (1.0 if guess == 1 else LATER_GUESS) * (cross * wanted).sum() / wanted.sum()
        with torch.no_grad():
            shares.append(float((torch.minimum(p, q.exp()).sum(-1) * wanted).sum() / wanted.sum()))
    return total, shares


def started_from(model: Any, head: Any) -> Any:
    """The head with the model's own attention layer and final norm, and a mean of token and state before them."""
    own = model.config.layer_types.index("full_attention")
    head.layers[0].load_state_dict(model.model.layers[own].state_dict())
    head.norm.load_state_dict(model.model.norm.state_dict())
    for norm in (head.pre_fc_norm_embedding, head.pre_fc_norm_hidden):
        torch.nn.init.zeros_(norm.weight)  # stored as what is added to one
    half = torch.eye(model.config.hidden_size) / 2
    with torch.no_grad():
        head.fc.weight.copy_(torch.cat([half, half], dim=1))
    return head


def stored(head: Any) -> dict[str, Tensor]:
    """The head by its published names in BF16, experts one by one."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in head.named_parameters():
        value = parameter.detach().to(torch.bfloat16)
        stem, fused, which = name.partition(".mlp.experts.")
        if not fused:
            tensors[f"mtp.{name}"] = value.contiguous()
            continue
        for expert, matrix in enumerate(value):
            parts = {"gate_proj": matrix[: len(matrix) // 2], "up_proj": matrix[len(matrix) // 2 :]}
            for projection, part in (parts if which == "gate_up_proj" else {"down_proj": matrix}).items():
                tensors[f"mtp.{stem}.mlp.experts.{expert}.{projection}.weight"] = part.contiguous()
    return tensors


def main() -> None:
    """Train until the clock says stop, then write the head and what was printed."""
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    loaded = load_model(arguments.model)
    head = started_from(loaded.model, DraftHead(draft_config(loaded.checkpoint)).float())
    head.train()
    with TemporaryDirectory() as place:
        pool = build_pool(
            arguments.model / "tokenizer.json",
            TOKEN_SHARES,
            int(arguments.pool_tokens),
            seed=arguments.seed,
            workers=arguments.workers,
            out=Path(place),
        )
    batches = Batches(pool, list(TOKEN_SHARES), arguments.tokens, arguments.seed, 0, 1)
    optimizer = torch.optim.AdamW(head.parameters(), lr=arguments.lr, betas=(0.9, 0.95), weight_decay=0.01)
    started, step, seen, lines = time.monotonic(), 0, 0, []
    while (progress := (time.monotonic() - started) / arguments.seconds) < 1:
        ids, weights = batches.next()
        read = torch.zeros_like(ids, dtype=torch.bool)
        for row, wanted in enumerate(weights):
            read[row, : int(wanted.nonzero().max()) + 1 if bool(wanted.any()) else 0] = True
        for group in optimizer.param_groups:
            group["lr"] = arguments.lr * min(1.0, (step + 1) / 50, max(0.02, (1 - progress) / 0.5))
        loss, shares = losses(loaded.model, head, ids, read)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        seen += ids.numel()
        if step % 25 == 0:
            lines.append(
                {"step": step, "seconds": round(time.monotonic() - started), "tokens": seen}
                | {"loss": round(float(loss.detach()), 4), "acceptance": [round(share, 4) for share in shares]}
            )
            print(json.dumps(lines[-1]), flush=True)
        step += 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    save_file(stored(head), arguments.out / "model_mtp.safetensors", metadata={"format": "pt"})
    settings = {name: str(value) for name, value in vars(arguments).items() if name != "out"}
    (arguments.out / "training.json").write_text(json.dumps({"settings": settings, "log": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
