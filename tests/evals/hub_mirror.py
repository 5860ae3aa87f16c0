"""A local mirror laid out as `datasets` and NLTK keep what they fetched, with a few rows of ours in real schemas."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

DATA = yaml.safe_load(Path(__file__).with_name("mirror.yaml").read_text(encoding="utf-8"))
PASSAGE = "This question refers to the following information.\n“The miller paid the tithe.”\n— A charter, 1348\n"


def write_mirror(home: Path) -> None:
    """Fill `home`/datasets and `home`/nltk_data."""
    from datasets import ClassLabel, Features, List, Value

    text = Value("string")
    mmlu = Features(question=text, subject=text, choices=List(text), answer=ClassLabel(names=["A", "B", "C", "D"]))
    root = home / "datasets"
    for subject in ("anatomy", "high_school_european_history"):
        splits = {"test": _questions(subject, 8), "dev": _questions(subject, 6, "Solved: ")}
        cache(root, "cais/mmlu", subject, splits, mmlu)
    pages = {split: [{"page": _page(split, number)} for number in range(3)] for split in ("train", "test")}
    cache(root, "EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", pages, Features(page=text))
    essays = [{"title": f"Essay {n}", "text": _prose(n, 900)} for n in range(3)]
    cache(root, "baber/paul_graham_essays", "default", {"train": essays}, Features(title=text, text=text))
    answers = {"text": List(text), "answer_start": List(Value("int32"))}
    squad = Features(id=text, title=text, context=text, question=text, answers=answers)
    cache(root, "rajpurkar/squad_v2", "squad_v2", {"validation": _squad()}, squad)
    context = {"title": List(text), "sentences": List(List(text))}
    hotpot = Features(id=text, question=text, answer=text, context=context)
    rows = [*(_question_about(n, n) for n in range(8)), _question_about(8, 0)]  # the last shares the first's document
    cache(root, "hotpotqa/hotpot_qa", "distractor", {"validation": rows}, hotpot)
    names = ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
    hard = [{name: f"{name} {number}?" for name in names} for number in range(4)]
    cache(root, "Idavidrein/gpqa", "gpqa_diamond", {"train": hard}, Features({name: text for name in names}))
    sums = {
        split: [{"question": f"{split}: {n} + 2?", "answer": f"It is {n + 2}.\n#### {n + 2}"} for n in range(count)]
        for split, count in (("train", 12), ("test", 4))
    }
    cache(root, "openai/gsm8k", "main", sums, Features(question=text, answer=text))
    program = DATA["program"]
    cache(root, "openai/openai_humaneval", "default", {"test": [program]}, Features({name: text for name in program}))
    _write_punkt(home / "nltk_data/tokenizers/punkt_tab/english")


def cache(root: Path, name: str, config: str, splits: Mapping[str, Sequence[Mapping[str, Any]]], features: Any) -> None:
    """Write splits of `namespace/dataset` below the cache folder `root`."""
    from datasets import Dataset, DatasetInfo, SplitDict, SplitInfo, Version
    from datasets.arrow_writer import ArrowWriter
    from datasets.naming import camelcase_to_snakecase

    namespace, _, written = name.partition("/")
    dataset = camelcase_to_snakecase(written)
    folder = root / f"{namespace}___{dataset}" / config / "0.0.0" / DATA["commits"][name]
    folder.mkdir(parents=True)
    infos = SplitDict(dataset_name=dataset)
    for split, rows in splits.items():
        held = Dataset.from_list([dict(row) for row in rows], features=features)
        with ArrowWriter(path=str(folder / f"{dataset}-{split}.arrow"), features=features) as writer:
            writer.write_table(held.data.table)
            writer.finalize()
        infos.add(SplitInfo(name=split, num_examples=len(rows), dataset_name=dataset))
    DatasetInfo(
        features=features,
        builder_name="parquet",
        dataset_name=dataset,
        config_name=config,
        version=Version("0.0.0"),
        splits=infos,
    ).write_to_directory(str(folder))


def _questions(subject: str, count: int, before: str = "") -> list[dict[str, Any]]:
    history = subject.endswith("history")
    return [
        {
            "question": f"{PASSAGE if history and number < 3 else before}Which bone is number {number} of {subject}?",
            "subject": subject,
            "choices": [f"Bone {number + offset}" for offset in range(4)],
            "answer": number % 4,
        }
        for number in range(count)
    ]


def _page(split: str, number: int) -> str:
    text = f"A page of the {split} split , number {number} ."
    return f" = Heading {number} = \n\n {text} \n\n = = Part = = \n\n Its end . \n"


def _prose(seed: int, words: int) -> str:
    parts = ("The mill stands", "A road runs", "Nobody asked", "Rain fell", "They wrote")
    ends = ("by the river.", "past the church.", "about the price.", "until the evening.", "in plain words.")
    return " ".join(f"{parts[(seed + n) % 5]} {ends[(seed * 2 + n // 5) % 5]}" for n in range(words // 5))


def _squad() -> list[dict[str, Any]]:
    rows = []
    for article in range(3):
        for paragraph in range(4):
            context = f"Paragraph {paragraph} of article {article}: the miller Jan {article}{paragraph} kept bees."
            for question in range(3):
                texts = [f"Jan {article}{paragraph}"] if question < 2 else []
                rows.append(
                    {
                        "id": f"{article}-{paragraph}-{question}",
                        "title": f"Article {article}",
                        "context": context,
                        "question": f"Who kept bees, by paragraph {paragraph} of {article}, asked {question}?",
                        "answers": {"text": texts, "answer_start": [0] * len(texts)},
                    }
                )
    return rows


def _question_about(number: int, village: int) -> dict[str, Any]:
    return {
        "id": str(number),
        "question": f"Which village has mill {number}?",
        "answer": f"Lhota {village}",
        "context": {
            "title": [f"Mill {number}", f"Village {village}"],
            "sentences": [
                [f"Mill {number} stands in Lhota {village}.", " It is old."],
                [f"Lhota {village} is small."],
            ],
        },
    }


def _write_punkt(folder: Path) -> None:
    """The sentence splitter's parameters in NLTK's format, with one abbreviation and nothing learnt."""
    folder.mkdir(parents=True)
    (folder / "abbrev_types.txt").write_text("mr\n")
    (folder / "sent_starters.txt").write_text("nobody\n")
    (folder / "collocations.tab").write_text("st\tjohn\n")
    (folder / "ortho_context.tab").write_text("the\t46\n")


def use_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process finds the cache at `home`, and no network."""
    import datasets
    import huggingface_hub.constants as hub
    import nltk.data

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", home / "datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(nltk.data, "path", [str(home / "nltk_data")])
    return home
