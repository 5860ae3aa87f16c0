"""Write the golden GGUF files: `LLAMA_CPP=SOURCES LLAMA_QUANTIZE=PROGRAM python tests/assets/golden_gguf.py`.

Two tiny `qwen3_5_moe` of random weights, converted by llama.cpp's `convert_hf_to_gguf.py` and quantized by its
`llama-quantize`, both of the source distribution of llama-cpp-python 0.3.36. The converter knows tokenizers by a
hash of what they make of a text; that of these models is told to be `qwen35`, the rest runs as it is.

`ggufs/NAME.gguf` is what they wrote; `ggufs/MANIFEST.json` holds, of every file, its SHA-256 and, of every quantized
tensor, the SHA-256 of the float32 values that `llama-quantize --allow-requantize … F32` decodes it to: llama.cpp's own
C code, which shares nothing with the `gguf` package.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml

GOLDEN = Path(__file__).parent / "ggufs"
MANIFEST = GOLDEN / "MANIFEST.json"
PRODUCER = "llama.cpp of llama-cpp-python 0.3.36"
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
SETTINGS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""Sizes of both models by name, and the types of the mixture."""
_MIXED = tuple(word for name, kind in SETTINGS["mixture"].items() for word in ("--tensor-type", f"{name}={kind}"))
MADE: dict[str, tuple[str, tuple[str, ...]]] = {
    "bf16": ("names", ()),
    "q8_0": ("names", ("Q8_0",)),
    "mxfp4": ("names", ("MXFP4_MOE",)),
    "q4_k_m": ("wide", ("Q4_K_M",)),
    "mixed": ("wide", (*_MIXED, "--output-tensor-type", "nvfp4", "Q8_0")),
}
"""From which model, and by which arguments of `llama-quantize`; none is what the converter writes by itself."""


def model(folder: Path, which: str) -> None:
    """The model and its text side, as a Hugging Face folder: the same weights each time."""
    from golden_base import randomized, tiny_config
    from safetensors.torch import load_file, save_file
    from transformers import Qwen3_5MoeForCausalLM

    sizes = SETTINGS[which]
    randomized(lambda: Qwen3_5MoeForCausalLM(tiny_config(**sizes))).save_pretrained(folder)
    if which == "names":
        weights = load_file(folder / "model.safetensors")
        save_file(weights | _multi_token(weights), folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"mtp_num_hidden_layers": 1}))
    write_texts(folder, sizes["vocab_size"])


def _multi_token(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A multi-token head such as published checkpoints have: a full-attention layer, and four weights of its own."""
    prefix = "model.layers.1."
    of_layer = {f"mtp.layers.0.{name.removeprefix(prefix)}": one for name, one in weights.items() if prefix in name}
    hidden = weights["model.norm.weight"]
    torch.manual_seed(5)
    own = {
        "mtp.fc.weight": torch.randn(len(hidden), 2 * len(hidden)).bfloat16(),
        **{
            f"mtp.{name}.weight": torch.randn(len(hidden)).mul(0.1).bfloat16()
            for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
        },
    }
    return {name: tensor.clone() for name, tensor in (of_layer | own).items()}


def write_texts(folder: Path, count: int) -> None:
    """A tokenizer of fewer than `count` tokens, generation settings and a template."""
    tokenizer = json.loads(Path(__file__).with_name("golden_tokenizer.json").read_text(encoding="utf-8"))
    vocabulary, added = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    assert len(vocabulary) + len(added) < count
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [vocabulary["Ġa"] + 3]}))


def convert(folder: Path, target: Path, *options: str) -> None:
    """Run the converter, which is told what the tokenizer is: BPE of that name, with no tokenizer.model beside it."""
    sources = Path(os.environ["LLAMA_CPP"])
    program = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[1] + '/gguf-py']; del sys.argv[1]\n"
        "from conversion import base; base.TextModel.get_vocab_base_pre = lambda self, tokenizer: 'qwen35'\n"
        "def no_pieces(self): raise FileNotFoundError\n"
        "base.TextModel._set_vocab_sentencepiece = base.TextModel._set_vocab_llama_hf = no_pieces\n"
        "import convert_hf_to_gguf; convert_hf_to_gguf.main()"
    )
    command = [sys.executable, "-c", program, str(sources), str(folder), "--outfile", str(target), *options]
    subprocess.run(command, check=True, capture_output=True)


def quantize(source: Path, target: Path, *options: str) -> None:
    """Run llama.cpp's quantizer, on one thread: `options` end with the type."""
    program = os.environ["LLAMA_QUANTIZE"]
    flags, kind = list(options[:-1]), options[-1]
    subprocess.run([program, *flags, str(source), str(target), kind, "1"], check=True, capture_output=True)


def decoded_by_c(file: Path) -> dict[str, str]:
    """The SHA-256 of what llama.cpp decodes every quantized tensor to, by stored name."""
    sys.path.insert(0, str(Path(os.environ["LLAMA_CPP"]) / "gguf-py"))
    from gguf import GGUFReader

    kinds = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(file).tensors}
    with tempfile.TemporaryDirectory() as scratch:
        quantize(file, Path(scratch) / "f32.gguf", "--allow-requantize", "F32")
        values = {tensor.name: tensor.data for tensor in GGUFReader(Path(scratch) / "f32.gguf").tensors}
        return {
            name: f"{kind} {hashlib.sha256(values[name].tobytes()).hexdigest()}"
            for name, kind in kinds.items()
            if kind not in ("F32", "F16", "BF16")
        }


def main() -> None:
    """Write all of them anew."""
    GOLDEN.mkdir(exist_ok=True)
    entries: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, (which, options) in MADE.items():
            folder, plain, target = Path(scratch) / which, Path(scratch) / f"{which}.gguf", GOLDEN / f"{name}.gguf"
            if not folder.exists():
                model(folder, which)
                convert(folder, plain, "--outtype", "bf16", *([] if which == "names" else ["--no-mtp"]))
            if options:
                quantize(plain, target, *options)
            else:
                target.write_bytes(plain.read_bytes())
            digest = hashlib.sha256(target.read_bytes()).hexdigest()
            decoded = decoded_by_c(target) if options else {}
            entries[name] = {"producer": PRODUCER, "model": which, "sha256": digest, "decoded": decoded}
    MANIFEST.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
