"""A corpus of a few texts, as a person brings one."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml


def write_corpus(folder: Path, texts: Sequence[str | Mapping[str, str]], **config: object) -> Path:
    """A corpus file over `texts.jsonl`, of texts or of whole lines; the reference answers nothing unless asked to."""
    lines = [
        {"id": str(number), "slice": "own"} | (dict(text) if isinstance(text, Mapping) else {"text": text})
        for number, text in enumerate(texts)
    ]
    (folder / "texts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    path = folder / "corpus.yaml"
    whole = {"name": "own", "json_lines": [{"path": "texts.jsonl"}], "on_policy": None} | config
    path.write_text(yaml.safe_dump(whole), encoding="utf-8")
    return path
