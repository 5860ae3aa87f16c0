"""Models of other architectures at their real shapes, beside transformers with the same weights in the same process.

    python -m benchmarks.real_shapes llama-8b /fast/disk/llama-8b
    python -m benchmarks.real_shapes smollm2 FOLDER --texts 20 --width 48 --new 48

A shape of the list gets random weights; a folder with a checkpoint is used as it is. Printed are tokens a second of
transformers' own forward pass and `generate` and of ours, the error of the states, and peak memory beside the plan.
"""

import argparse
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from q36eval.checkpoints.architecture import base_of
from q36eval.checkpoints.loader import load_model
from q36eval.checkpoints.open_checkpoints import hold
from q36eval.checkpoints.placements import LAYERS
from q36eval.engines.abilities import tried
from q36eval.engines.base import GenerationRequest, ScoreRequest
from q36eval.engines.layer_by_layer import LayerByLayerEngine
from q36eval.engines.resident import ResidentEngine
from q36eval.records import DeploymentIdentity

_COMMON = {"tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_QWEN_30B = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
_QWEN_27B = {
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
}
_LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
SHAPES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "llama-8b": ("llama", 1, _LLAMA_8B),
    "qwen3.5-27b": ("qwen3_5_text", 4, _QWEN_27B),
    "gpt-oss-20b": ("gpt_oss", 2, {"num_hidden_layers": 24, "num_local_experts": 32}),
    "qwen3-30b-a3b": ("qwen3_moe", 1, _QWEN_30B),
}
"""`model_type`, after how many layers their kinds repeat, and the sizes of the published config."""
GIB = 2**30
IDENTITY = DeploymentIdentity(
    checkpoint_sha256="0" * 64,
    tokenizer_sha256="0" * 64,
    chat_template_sha256="0" * 64,
    engine="in-process",
    engine_version="random weights",
    settings={"device": "cuda"},
    kv_cache_dtype="auto",
)


class Numbers:
    """A tokenizer whose text is its token ids; nothing ends an answer."""

    eos_token_id = pad_token_id = None

    def decode(self, ids: list[int], **_settings: Any) -> str:
        return " ".join(map(str, ids))


def write(name: str, folder: Path) -> None:
    """One period of layers by transformers, and the others as copies of it under their own numbers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, period, sizes = SHAPES[name]
    config, one = (AutoConfig.for_model(kind, **(_COMMON | sizes | few)) for few in ({}, {"num_hidden_layers": period}))
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(one, dtype=torch.bfloat16)
    model.save_pretrained(folder / "period", max_shard_size="100GB")
    config.dtype, config.architectures = "bfloat16", [type(model).__name__]
    config.save_pretrained(folder)
    del model
    stored = load_file(folder / "period" / "model.safetensors")
    shutil.rmtree(folder / "period")
    inside = {key: value for key, value in stored.items() if ".layers." in key}
    save_file({key: value for key, value in stored.items() if key not in inside}, folder / "around.safetensors")
    index = {key: "around.safetensors" for key in stored.keys() - inside.keys()}
    for begin in range(0, config.num_hidden_layers, period):
        file = f"layers-{begin}.safetensors"

        def own(found: re.Match[str], begin: int = begin) -> str:
            return f".layers.{int(found[1]) + begin}."

        shard = {re.sub(r"\.layers\.(\d+)\.", own, key): value for key, value in inside.items()}
        save_file(shard, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def seconds(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call gives and how long it takes, on the GPU as well."""
    begin = time.perf_counter()
    result = call()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - begin


def drawn(count: int, length: int, vocabulary: int) -> torch.Tensor:
    """Token ids [count, length]."""
    return torch.randint(3, vocabulary, (count, length), generator=torch.Generator().manual_seed(count + length))


@torch.inference_mode()
def compared(name: str, folder: Path, texts: int, width: int, new: int, rows: tuple[int, ...]) -> None:
    """Prefill and answers of both, ours last: it may replace a model's layers by fused ones."""
    loaded, took = seconds(lambda: load_model(folder, device=DEVICE))
    model = loaded.model
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    print(f"{name}: loaded {size / GIB:.1f} GiB in {took:.1f} s ({size / GIB / took:.2f} GiB/s)")
    vocabulary = model.config.vocab_size
    model.generation_config.eos_token_id = None
    read = drawn(texts, width, vocabulary)
    prompts = {count: drawn(count, 128, vocabulary) for count in rows}
    base, own_states, own_answers, own_took = base_of(model), [], {}, {}

    def states(batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = base(input_ids=batch.to(DEVICE), use_cache=False).last_hidden_state
        return found

    states(read[:4])
    for begin in range(0, texts, 4):
        found, took = seconds(lambda begin=begin: states(read[begin : begin + 4]))
        own_states.append(found.float().cpu())
        own_took["prefill"] = own_took.get("prefill", 0.0) + took
    for count, ids in prompts.items():

        def answer(ids: torch.Tensor = ids, new: int = new) -> torch.Tensor:
            answers: torch.Tensor = model.generate(
                input_ids=ids.to(DEVICE), max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0
            )
            return answers[:, ids.shape[1] :].cpu()

        answer(new=8)
        own_answers[count], own_took[str(count)] = seconds(answer)
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    engine = ResidentEngine(model, Numbers(), IDENTITY)
    engine.abilities, took = seconds(lambda: tried(model))
    print(f"{name}: self-test {took:.1f} s, {engine.abilities}; {engine.plan}")
    requests = [ScoreRequest(str(at), tuple(row.tolist())) for at, row in enumerate(read)]
    list(engine.score(requests))
    scored, took = seconds(lambda: {one.request.key: one.hidden_states for one in engine.score(requests)})
    errors = []
    for at, own in enumerate(torch.cat(own_states)[:, :-1]):
        found = scored[str(at)]
        assert found is not None, "a text has an error"
        errors.append((found.float().cpu() - own).norm(dim=-1) / own.norm(dim=-1))
    error = torch.cat(errors)
    tokens = texts * width
    print(
        f"{name}: prefill of {texts} × {width} tokens: transformers {tokens / own_took['prefill']:.0f} tokens/s, ours "
        f"{tokens / took:.0f}, ratio {own_took['prefill'] / took:.2f}; error of the states: median "
        f"{error.median():.4f}, largest {error.max():.3f}, of {len(errors)} texts"
    )
    for count, ids in prompts.items():
        asked = [GenerationRequest(str(at), tuple(row.tolist()), max_new_tokens=new) for at, row in enumerate(ids)]
        list(engine.generate([GenerationRequest("warm", asked[0].token_ids, max_new_tokens=8)]))
        answers, took = seconds(lambda asked=asked: {each.request.key: each for each in engine.generate(asked)})
        same = [
            next(
                (
                    t
                    for t, pair in enumerate(zip(answers[str(at)].token_ids, own.tolist(), strict=False))
                    if len({*pair}) > 1
                ),
                new,
            )
            for at, own in enumerate(own_answers[count])
        ]
        made = sum(len(each.token_ids) for each in answers.values())
        print(
            f"{name}: {count} answers of {new} tokens: transformers {count * new / own_took[str(count)]:.1f} tokens/s, "
            f"ours {made / took:.1f} ({made} tokens), ratio {own_took[str(count)] / count / new * made / took:.2f}; "
            f"same for {sum(same) / len(same):.1f} tokens, whole {sum(each == new for each in same)}"
        )
    if DEVICE == "cuda":
        peak, room = torch.cuda.max_memory_allocated(), engine.plan.room
        print(
            f"{name}: peak {peak / GIB:.1f} GiB; planned {(room.weights + engine.plan.batches) / GIB:.1f} of "
            f"{room.total / GIB:.1f}"
        )


@torch.inference_mode()
def by_layers(name: str, folder: Path, texts: int, width: int, limit: float) -> None:
    """Scored layer by layer in `limit` GiB of the GPU."""
    if DEVICE == "cuda":
        torch.cuda.set_per_process_memory_fraction(limit * GIB / torch.cuda.mem_get_info()[1])
        torch.cuda.reset_peak_memory_stats()
    loaded = load_model(folder, device=DEVICE, placement=LAYERS)
    assert loaded.layers is not None
    engine = LayerByLayerEngine(loaded.model, Numbers(), IDENTITY, layers=loaded.layers, held=hold(folder))
    read = drawn(texts, width, loaded.model.config.vocab_size)
    requests = [ScoreRequest(str(at), tuple(row.tolist())) for at, row in enumerate(read)]
    scored, took = seconds(lambda: list(engine.score(requests)))
    failed = {one.error for one in scored if one.error}
    peak = torch.cuda.max_memory_allocated() / GIB if DEVICE == "cuda" else 0.0
    print(
        f"{name}: layer by layer, {texts} × {width} tokens in {took:.1f} s ({texts * width / took:.0f} tokens/s), peak "
        f"{peak:.1f} of {limit} GiB, errors {failed or 'none'}"
    )


def main() -> None:
    """Write, load, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", help=f"{', '.join(SHAPES)}, or any name for a folder with a checkpoint")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048, help="tokens of a text")
    parser.add_argument("--new", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--by-layers", type=float, metavar="GIB", help="score layer by layer in so much memory")
    asked = parser.parse_args()
    if not (asked.folder / "config.json").exists():
        asked.folder.mkdir(parents=True, exist_ok=True)
        _, took = seconds(lambda: write(asked.shape, asked.folder))
        print(f"{asked.shape}: written in {took:.1f} s")
    if asked.by_layers:
        by_layers(asked.shape, asked.folder, asked.texts, asked.width, asked.by_layers)
    else:
        compared(asked.shape, asked.folder, asked.texts, asked.width, asked.new, (1, 64))


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if __name__ == "__main__":
    main()
