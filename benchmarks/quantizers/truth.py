"""Texts and items that no criterion has seen: four kinds of text, and questions of PIQA and HellaSwag.

    python -m benchmarks.quantizers.truth FOLDER      write corpus.yaml and suite.yaml, and the files they name

All are fetched from GitHub at a fixed commit and kept by SHA-256; they are never committed. The texts are WikiText-2's
test articles, HumanEval's programs, GSM8K's test questions and Self-Instruct's answers to users, `DOCUMENTS` of each,
cut after `CHARACTERS`. PIQA is the truth about accuracy. HellaSwag is the benchmark that peers judge by, so that they
do not judge by the truth itself.
"""

import bz2
import gzip
import hashlib
import json
import re
import sys
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from benchmarks.frozen import write_frozen
from tests import smollm2

WIKITEXT = (
    "https://raw.githubusercontent.com/pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8"
    "/word_language_model/data/wikitext-2/test.txt",
    "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
)
PIQA = "https://raw.githubusercontent.com/ybisk/ybisk.github.io/21edab439af693b961be2f069e8690a88d3b4e37/piqa/data/"
QUESTIONS = (PIQA + "valid.jsonl", "93503cc97c679e459b065c3d13e848282e44b2a25213985bed3e5d458abef72d")
LABELS = (PIQA + "valid-labels.lst", "b4192dc3a2a0363d9d60ccf79800cbbe2f32ebb17726efdde6970e0b8131bceb")
HELLASWAG = (
    "https://raw.githubusercontent.com/klosax/hellaswag_text_data/1105d370f8340eac3c63a91fd1fa58e8999f9505"
    "/hellaswag_val_full.txt.bz2",
    "50b637899e4263c2bc456c2dc726c95d2c8cd8e2a552ea5bd7719ce3cb03fe5b",
)
HUMANEVAL = (
    "https://raw.githubusercontent.com/openai/human-eval/6d43fb980f9fee3c892a914eda09951f772ad10d"
    "/data/HumanEval.jsonl.gz",
    "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
)
GSM8K = (
    "https://raw.githubusercontent.com/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c"
    "/grade_school_math/data/test.jsonl",
    "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
)
SELF_INSTRUCT = (
    "https://raw.githubusercontent.com/yizhongw/self-instruct/0b26ccaa415992100fa32df62d41b994cf928e23"
    "/human_eval/user_oriented_instructions.jsonl",
    "81d60a117db495cecedecd9193504fd07c5b5a42f6699ef6b0f9da10fc22f42e",
)
PIQA_ITEMS, HELLASWAG_ITEMS, DOCUMENTS, CHARACTERS = 500, 300, 40, 800
TASK = {
    "task": "unseen_$SUBSET",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "$DATA/$SUBSET.jsonl"}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "label",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


def fetched(address: str, sha256: str) -> bytes:
    """The file at an address, from the cache if it is there; another hash is refused."""
    file = smollm2.cache() / sha256
    if not file.is_file():
        with urllib.request.urlopen(address, timeout=60) as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ValueError(f"{address} has another SHA-256 than {sha256}.")
        file.write_bytes(content)
    return file.read_bytes()


def piqa() -> list[dict[str, Any]]:
    """The first questions, as lm-eval's task `piqa` words them."""
    items = [json.loads(line) for line in fetched(*QUESTIONS).decode().splitlines()[:PIQA_ITEMS]]
    labels = fetched(*LABELS).decode().split()
    return [
        {"question": f"Question: {item['goal']}\nAnswer:", "choices": [item["sol1"], item["sol2"]], "label": int(label)}
        for item, label in zip(items, labels, strict=False)
    ]


def hellaswag() -> list[dict[str, Any]]:
    """Questions at equal distances; the file has six lines for each: context, label and four endings."""
    lines = bz2.decompress(fetched(*HELLASWAG)).decode().splitlines()
    starts = range(0, len(lines), 6 * (len(lines) // 6 // HELLASWAG_ITEMS))[:HELLASWAG_ITEMS]
    return [{"question": lines[at], "choices": lines[at + 2 : at + 6], "label": int(lines[at + 1])} for at in starts]


def texts() -> dict[str, list[str]]:
    """Whole texts by their kind, before any is cut."""
    articles = re.split(r"^ = [^=\n]+ = $", fetched(*WIKITEXT).decode(), flags=re.MULTILINE)[1:]
    programs = map(json.loads, gzip.decompress(fetched(*HUMANEVAL)).decode().splitlines())
    questions = map(json.loads, fetched(*GSM8K).decode().splitlines())
    tasks = [json.loads(line) for line in fetched(*SELF_INSTRUCT).decode().splitlines()]
    chats = [(task["instruction"], *(task["instances"][0][part] for part in ("input", "output"))) for task in tasks]
    return {
        "wikitext": [article.strip() for article in articles],
        "code": [each["prompt"] + each["canonical_solution"] for each in programs],
        "mathematics": [f"{each['question']}\n{each['answer']}" for each in questions],
        "chat": ["\n".join(part for part in chat if part) for chat in chats if chat[-1]],
    }


def write(folder: Path) -> None:
    """Write `corpus.yaml` for `kl --corpus` and `suite.yaml` for `evals --suite`."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"id": f"{kind}-{at}", "slice": kind, "text": text[:CHARACTERS]})
        for kind, whole in texts().items()
        for at, text in enumerate(whole[:DOCUMENTS])
    ]
    (folder / "texts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    corpus = {"name": "unseen texts", "json_lines": [{"path": "texts.jsonl"}], "on_policy": None}
    (folder / "corpus.yaml").write_text(yaml.safe_dump(corpus), encoding="utf-8")
    files = {"piqa.jsonl": piqa(), "hellaswag.jsonl": hellaswag()}
    write_frozen(folder / "data", "unseen items", 0, files, {"piqa": QUESTIONS[0], "hellaswag": HELLASWAG[0]})
    (folder / "task.yaml").write_text(yaml.safe_dump(TASK), encoding="utf-8")
    common = {"task": "task.yaml", "measure": "accuracy", "metric": "acc"}
    groups = [
        {"name": name, "title": title, "slice": name, "subsets": {name: {}}, **common}
        for name, title in (("piqa", "everyday physics, two answers"), ("hellaswag", "how a scene goes on"))
    ]
    suite = {"name": "unseen items", "data": "data", "max_length": 2047, "groups": groups}
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
