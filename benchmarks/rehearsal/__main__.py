"""A whole gate of the family qwen3.6-35b-a3b at the full shape, with random weights, on one GPU.

    python -m benchmarks.rehearsal FOLDER --device cuda:0 write gate report

`write` makes the branch (20.5 GiB) in FOLDER/fp8-head, the reference (64.6 GiB) in --reference, both with a tokenizer
and a chat template of our own, and what is asked of them; `gate` runs the real command line on them, with lines and
memory recorded; `report` writes FOLDER/rehearsal.json and FOLDER/rehearsal.md. Each goes on where it was killed.
With `--minutes` the gate is stopped after so many, and the same command goes on with it: the exit code is then 75.

The reference cannot do the tasks, so the verdict to be expected is INCONCLUSIVE (exit code 3). Only the lengths of
answers are not the model's: random weights never end one (`benchmarks.rehearsal.engine`). With `--engine vllm` the
branch is judged in vLLM, against the same capture of the reference; its files have `-vllm` behind their names.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.rehearsal.checkpoints import (
    WRITERS,
    Shape,
    is_written,
    size_gib,
    write_branch,
    write_reference,
    write_texts,
)
from benchmarks.rehearsal.material import BRANCH, Amount, write_material
from q36eval.engines.base import IN_PROCESS

STAGES = ("write", "gate", "report")
NOT_DONE = 75
"""The exit code where time was up before the gate ended; sysexits.h has it for what is to be tried again."""


def main() -> int:
    """Run the stages; the exit code is 1 where the report finds what a rehearsal must not show."""
    asked = _arguments()
    folder: Path = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    reference = (asked.reference or folder / "bf16").resolve()
    how = _amount(asked)
    begun = time.monotonic()
    for stage in asked.stages or STAGES:
        if stage == "write":
            _write(folder, reference, asked, how)
        elif stage == "gate":
            from benchmarks.rehearsal.running import run_gate, was_stopped

            left = None if asked.minutes is None else max(1.0, asked.minutes * 60 - (time.monotonic() - begun))
            code = run_gate(folder, how, asked.device, asked.answers, asked.more, left, asked.engine)
            print(f"the gate ended with exit code {code}", flush=True)
            if left is not None and was_stopped(code):
                print("time was up: run the same command again to go on", flush=True)
                return NOT_DONE
        else:
            from benchmarks.rehearsal.figures import report

            if not report(folder, how, asked.engine):
                return 1
        print(f"{stage}: {time.monotonic() - begun:.0f} s since the start", flush=True)
    return 0


def _write(folder: Path, reference: Path, asked: argparse.Namespace, how: Amount) -> None:
    shape = Shape(asked.layers, asked.experts, asked.hidden, asked.vocabulary)
    branch = folder / BRANCH
    seconds: dict[str, float] = {}
    texts = partial(write_texts, (branch, reference), shape, asked.template, asked.tokenizer)
    steps: tuple[tuple[str, Path, Callable[[], None]], ...] = (
        ("branch", branch, lambda: write_branch(branch, shape, asked.writers)),
        ("reference", reference, lambda: write_reference(branch, reference, asked.writers)),
        ("texts", reference / "tokenizer.json", texts),
        ("material", folder / "material" / "family.yaml", lambda: _material(folder, branch, reference, how)),
    )
    for name, place, write in steps:
        begun = time.monotonic()
        if not (is_written(place) if place.is_dir() or not place.suffix else place.exists()):
            write()
            seconds[name] = round(time.monotonic() - begun, 1)
    (folder / f"written-{time.time():.0f}.json").write_text(json.dumps(seconds))
    print(f"branch {size_gib(branch):.2f} GiB, reference {size_gib(reference):.2f} GiB; seconds {seconds}", flush=True)


def _material(folder: Path, branch: Path, reference: Path, how: Amount) -> None:
    from q36eval.checkpoints import load_tokenizer

    tokenizer = load_tokenizer(reference)
    write_material(
        folder / "material",
        branch,
        reference,
        lambda text: len(tokenizer.encode(text, add_special_tokens=False)),
        how,
    )


def _amount(asked: argparse.Namespace) -> Amount:
    given = {
        name: value
        for name in ("questions", "problems", "instructions", "articles", "article_tokens", "documents", "draws")
        if (value := getattr(asked, name)) is not None
    }
    if asked.ruler:
        pairs = [part.split("=") for part in asked.ruler.split(",")]
        given["ruler"] = tuple((int(length), int(samples)) for length, samples in pairs)
    return replace(Amount(), **given)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"{', '.join(STAGES)}; all by default")
    parser.add_argument("--reference", type=Path, help="folder of the reference; /dev/shm/bf16 where the disk is small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", choices=(IN_PROCESS, "vllm"), default=IN_PROCESS, help="what judges the branch")
    parser.add_argument("--writers", type=int, default=WRITERS, help="processes that write checkpoints, 2 GiB each")
    parser.add_argument("--template", type=Path, help="a chat template of your own, as the published one")
    parser.add_argument("--tokenizer", type=Path, help="a folder with a tokenizer of your own, as the published one")
    shape = Shape()
    for name in ("layers", "experts", "hidden", "vocabulary"):
        parser.add_argument(f"--{name}", type=int, default=getattr(shape, name), help="smaller, for a trial")
    for name in ("questions", "problems", "instructions", "articles", "article-tokens", "documents", "draws"):
        parser.add_argument(f"--{name}", type=int, help=f"{getattr(Amount(), name.replace('-', '_'))} by default")
    parser.add_argument("--ruler", help="lengths and samples of each kind, as 4096=8,131072=1")
    parser.add_argument("--answers", type=float, default=1.0, help="what the lengths of answers are multiplied by")
    parser.add_argument("--minutes", type=float, help="stop the gate after so many; the next call goes on with it")
    parser.add_argument("--more", nargs=argparse.REMAINDER, default=[], help="further options of the gate")
    asked = parser.parse_intermixed_args()  # stages may stand behind options
    if unknown := set(asked.stages) - set(STAGES):
        parser.error(f"no such stage: {', '.join(unknown)}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
