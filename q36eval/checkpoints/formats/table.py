"""The table of stored formats, printed by `make pages` and by `python -m q36eval.checkpoints.formats.table`."""

from dataclasses import dataclass

from q36eval.checkpoints.formats import takes_inputs_as_they_are


@dataclass(frozen=True)
class Described:
    """One entry of `FORMATS` for people.

    `inputs` says which quantizations of a module's inputs are emulated with it; `stored` how inspection names it;
    `bound` what a weight's error is held to.
    """

    declared: str
    written_by: str
    stored: str
    inputs: str
    bound: str


_NEAREST = "half a step of the grid that the reference's weight calls for"
_COMPRESSED = "FP8 and INT8 (per token, group or tensor), NVFP4, MX"

DESCRIBED: dict[str, Described] = {
    "nvfp4-pack-quantized": Described(
        "compressed-tensors", "llm-compressor 0.14", "`NVFP4 g16`", _COMPRESSED, f"{_NEAREST}, scales in FP8"
    ),
    "mxfp4-pack-quantized": Described(
        "compressed-tensors",
        "llm-compressor 0.14",
        "`MXFP4 g32`",
        "MXFP4 and MXFP8, the shared exponent to the nearest; the others of compressed-tensors",
        f"{_NEAREST}, the exponent rounded either way",
    ),
    "mxfp8-quantized": Described(
        "compressed-tensors",
        "llm-compressor 0.14",
        "`MXFP8 g32`",
        "MXFP4 and MXFP8, the shared exponent to the nearest; the others of compressed-tensors",
        f"{_NEAREST}, the exponent rounded either way",
    ),
    "pack-quantized": Described(
        "compressed-tensors",
        "llm-compressor 0.8 to 0.14, AWQ among it",
        "`INT4 g128`, `INT8 channel`",
        _COMPRESSED,
        _NEAREST,
    ),
    "float-quantized": Described(
        "compressed-tensors", "llm-compressor 0.14", "`FP8 channel`", _COMPRESSED, f"{_NEAREST}, scales of any size"
    ),
    "int-quantized": Described("compressed-tensors", "llm-compressor 0.14", "`INT8 channel`", _COMPRESSED, _NEAREST),
    "naive-quantized": Described(
        "compressed-tensors", "compressed-tensors 0.19", "`INT8 channel`, `FP8 tensor`", _COMPRESSED, _NEAREST
    ),
    "fp8": Described(
        "fp8", "transformers 5.17, DeepSeek, Qwen", "`FP8 block 128x128`", "FP8 per token and block, or static",
        f"{_NEAREST}, scales of any size"),
    "gptq": Described(
        "gptq (versions 1 and 2), auto-round",
        "GPTQModel 7.3, auto-round 0.16",
        "`INT4 g128`, `INT8 channel`",
        "",
        _NEAREST,
    ),
    "awq": Described("awq (gemm), auto-round", "auto-round 0.16 (AutoAWQ's layout)", "`INT4 g128`", "", _NEAREST),
    "modelopt-nvfp4": Described(
        "modelopt", "Model Optimizer 0.47", "`NVFP4 g16`", "NVFP4", f"{_NEAREST}, scales in FP8"
    ),
    "modelopt-fp8": Described(
        "modelopt", "Model Optimizer 0.47", "`FP8 tensor`, `FP8 channel`, `FP8 block 128x128`",
        "FP8 per token, or static", f"{_NEAREST}, scales of any size"),
    "modelopt-mxfp4": Described(
        "modelopt", "Model Optimizer 0.47", "`MXFP4 g32`", "MXFP4, the shared exponent rounded up",
        f"{_NEAREST}, the exponent rounded either way"),
    "modelopt-mxfp8": Described(
        "modelopt", "Model Optimizer 0.47", "`MXFP8 g32`", "MXFP8, the shared exponent rounded up",
        f"{_NEAREST}, the exponent rounded either way"),
    "gguf": Described(
        "none: a GGUF says it of every tensor", "llama.cpp (llama-cpp-python 0.3.36)", "`Q4_K`, `IQ4_XS`, `MXFP4`", "",
        f"{_NEAREST} and of its superblock's scales; four times as much with an importance matrix"),
    "plain": Described("nothing", "transformers", "`BF16`, `F16`, `F32`", "", "the reference's bits"),
}  # fmt: skip

NOT_DECODED = {
    "AutoRound's `fp8_static`, `mx_fp`, `nv_fp`, 5 to 7 bits, and `rotation_config`": "auto-round",
    "AWQ of versions `gemv`, `gemv_fast` and `llm-awq`, and of other bits than 4": "awq",
    "GPTQ-Marlin and other layouts of `checkpoint_format`; words other than int32": "gptq",
    "Model Optimizer's INT4 AWQ, `W4A8_…`, MXFP6 and MXINT8": "modelopt",
    "weight transforms and sparsity (`transform_config`, `sparsity_config`)": "compressed-tensors",
    "GGUF's IQ1, IQ2, IQ3, TQ1, TQ2, Q1_0 and Q2_0; other architectures than `qwen35moe`": "none",
    "bitsandbytes, HQQ, EXL3, torchao, Quark, transformers' own `mxfp4`": "their names",
}
"""What is refused, and the `quant_method` that its configuration names."""


def page() -> str:
    """The page in Markdown."""
    rows = [
        f"| `{name}` | {each.declared} | {each.written_by} | yes | "
        f"{'as they are' if takes_inputs_as_they_are(name) else each.inputs} | {each.stored}; {each.bound} | yes |"
        for name, each in DESCRIBED.items()
    ]
    refused = [f"| {what} | {method} |" for what, method in NOT_DECODED.items()]
    return f"""# Stored formats

What a checkpoint may be stored in, and what is done with it. Each is held, bit for bit, to what the producer's own code
decodes a checkpoint of its own to (`tests/assets/golden`), and goes through the same steps: the loader **decodes** it,
inputs of its modules are **emulated** as the engine quantizes them, `q36eval inspect` names and bounds it,
`q36eval attribute` restores it part by part.

| format | `quant_method` | golden files written by | decode | emulate inputs | inspect: named; held to | attribute |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}

What holds each column, for every golden file: **decode**, the producer's own decoding bit for bit, whole, in slabs and
in the loaded model (`tests/q36eval/checkpoints/test_golden.py`, `test_round_trips.py`; fused 3-D experts also in
`test_fused_fp8.py`); **emulate**, compressed-tensors' own quantizers and numbers by hand (`test_emulation.py`), and
recorded logits that move where it is left out (`tests/q36eval/test_numerics.py`); **inspect**, no alarm as it is, and
the finding that names the damage after some forty kinds of it (`test_damage.py`); **attribute**, every quantized part
is blamed, and with all of them restored nothing is left (`test_golden.py`).

The shared exponent of microscaled inputs is rounded as their producer's own emulation does: compressed-tensors to the
nearest power (up from 1.75), Model Optimizer up; OCP Microscaling Formats 1.0 itself rounds it down. Model Optimizer
0.47 writes its weight-only MX configurations as it writes the others, to the letter: they are judged with quantized
inputs. What it calls NVFP4 is judged as weight-only where every config group has targets and leaves inputs as they
are, and no scale of inputs is stored.

A GGUF (`docs/gguf.md`) is decoded by the `gguf` package (`pip install 'q36eval[gguf]'`); its weights alone are judged.
llama.cpp multiplies them with activations that it rounds to 8 bits, on CPUs and on most GPUs, which is not emulated.

AutoRound's symmetric scales have a sign. AWQ and SmoothQuant as llm-compressor and AutoAWQ apply them move factors from
norms into the columns of the projections behind them, or from a projection's rows into the next one's columns:
inspection folds them out before it compares, provided that every weight behind a norm carries its factors
(`smoothing-not-carried` names one that does not; the mappings of llm-compressor 0.14 for this model leave the router
out, and SmoothQuant's the routed experts). It also writes each norm's 1 + weight rounded to BF16 (`norms-rounded`,
advisory).

## Not decoded

A format that is not decoded is refused in one sentence that names it and what is known.

| what | `quant_method` |
|---|---|
{chr(10).join(refused)}
"""


if __name__ == "__main__":
    print(page(), end="")
