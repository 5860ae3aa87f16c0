"""What a rehearsal asks: a suite of generated items in the shapes of the real tasks, a corpus, a policy, a family.

All are files in the folder of the rehearsal, written by a person's own means: a suite file with its tasks and frozen
data, a corpus file, a policy that extends `release`, a family file that names the two checkpoints.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.frozen import write_frozen
from benchmarks.sandbox import prose_english
from benchmarks.sandbox.prose import SLICES, document
from benchmarks.sandbox.ruler import KINDS, MIN_TOKENS, make
from q36eval.config import Paths
from q36eval.examples import TextExample, draw

SEED = 20261
FAMILY = "qwen3.6-35b-a3b"
BRANCH = "fp8-head"
OWN_TASKS = Path(__file__).parents[2] / "evals" / "tasks"
SUBJECTS, SHOTS = 57, 5
Record = dict[str, Any]


@dataclass(frozen=True)
class Amount:
    """How much is asked. The defaults are the rehearsal's at the full shape."""

    questions: int = 20
    """Of each of the 57 subjects, after five solved ones."""
    ruler: tuple[tuple[int, int], ...] = ((4096, 8), (131072, 1))
    """Lengths and samples of each kind; of a length beyond 32,768 only `long_kinds` kinds."""
    long_kinds: int = 4
    problems: int = 64
    """Of GSM8K's form: solved in words, with five solved ones before them."""
    instructions: int = 64
    """Of IFEval's form: one turn of the chat template."""
    articles: int = 62
    article_tokens: int = 2400
    documents: int = 420
    document_tokens: int = 330
    draws: int = 20
    """Of every canary family; `release` draws 200."""

    @property
    def longest(self) -> int:
        return max(length for length, _ in self.ruler)


def write_material(
    folder: Path, branch: Path, reference: Path, count_tokens: Callable[[str], int], how: Amount
) -> None:
    """Suite, corpus, policy and family into `folder`."""
    from q36eval.checkpoints import tokenizer_sha256

    folder.mkdir(parents=True, exist_ok=True)
    files = dict(_files(count_tokens, how))
    write_frozen(folder / "data", "rehearsal tasks", SEED, files, {"tokenizer_sha256": tokenizer_sha256(reference)})
    _write_tasks(folder / "tasks")
    _write(folder / "suite.yaml", _suite(how))
    _write_corpus(folder, how)
    _write(folder / "policy.yaml", _policy(how))
    _write(folder / "family.yaml", _family(folder, branch, reference))


def _write(path: Path, content: Record) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")


# ---- items ----


def _files(count_tokens: Callable[[str], int], how: Amount) -> Iterator[tuple[str, list[Record]]]:
    for number in range(SUBJECTS):
        rng = random.Random(f"{SEED}/mmlu/{number}")
        name = f"subject_{number:02}"
        drawn = [_question(rng, name, f"{name}-{index}") for index in range(SHOTS + how.questions)]
        yield f"mmlu_dev/{name}.jsonl", drawn[:SHOTS]
        yield f"mmlu/{name}.jsonl", drawn[SHOTS:]
    rng = random.Random(f"{SEED}/problems")
    problems = [_problem(rng, index) for index in range(SHOTS + how.problems)]
    yield "problems_dev/all.jsonl", problems[:SHOTS]
    yield "problems/all.jsonl", problems[SHOTS:]
    rng = random.Random(f"{SEED}/instructions")
    yield "instructions/all.jsonl", [_instruction(rng, index) for index in range(how.instructions)]
    rng = random.Random(f"{SEED}/articles")
    articles = [document(rng, ("english", "czech")[index % 2], how.article_tokens) for index in range(how.articles)]
    yield "articles/all.jsonl", [{"cluster": f"a{n}", "text": each.answer} for n, each in enumerate(articles)]
    for kind in KINDS:
        yield f"ruler/{kind}.jsonl", list(_ruler(kind, count_tokens, how))


def _sentences(rng: random.Random, count: int) -> str:
    return " ".join(prose_english.sentence(rng) for _ in range(count))


def _question(rng: random.Random, subject: str, key: str) -> Record:
    """About 90 tokens, as MMLU's: a text, what is asked of it, four choices."""
    choices = [prose_english.sentence(rng).rstrip(".") for _ in range(4)]
    text = f"{_sentences(rng, rng.randint(1, 6))} Which of these is told in the text?"
    return {"subject": subject, "question": text, "choices": choices, "answer": rng.randrange(4), "cluster": key}


def _problem(rng: random.Random, index: int) -> Record:
    """A sum in words and its solution, whose last line is the answer after `####`."""
    solution = "\n".join(prose_english.mathematics_paragraph(rng) for _ in range(3))
    answer = str(rng.randrange(10, 9999))
    return {"question": _sentences(rng, 5), "answer": f"{solution}\n#### {answer}", "cluster": f"p{index}"}


def _instruction(rng: random.Random, index: int) -> Record:
    words = rng.randrange(150, 500)
    prompt = f"{_sentences(rng, 2)} Write about this in at least {words} words, in lower case, without any comma."
    return {"prompt": prompt, "answer": "", "cluster": f"i{index}"}


def _ruler(kind: str, count_tokens: Callable[[str], int], how: Amount) -> Iterator[Record]:
    for length, samples in how.ruler:
        if length < MIN_TOKENS.get(kind, 0) or (length > 32768 and KINDS.index(kind) >= how.long_kinds):
            continue
        rng = random.Random(f"{SEED}/ruler/{kind}/{length}")
        for index in range(samples):
            example = draw(partial(_made, kind, length - 128, count_tokens), rng, "test")
            yield {
                "kind": kind,
                "length": length,
                "cluster": f"{kind}-{length}-{index}",
                "input": example.prompt,
                "outputs": example.expected["outputs"],
            }


def _made(kind: str, length: int, count_tokens: Callable[[str], int], rng: random.Random) -> TextExample:
    return make(kind, rng, length, count_tokens)


# ---- suite ----


def _task(name: str, output: str, **more: Any) -> Record:
    return {
        "task": f"{name}_$SUBSET",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": f"$DATA/{name}/$SUBSET.jsonl"}},
        "test_split": "test",
        "output_type": output,
    } | more


def _exact(**more: Any) -> Record:
    return more | {"metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]}


def _generation(tokens: int, *until: str) -> Record:
    return {"do_sample": False, "temperature": 0.0, "max_gen_toks": tokens, "until": list(until)}


def _write_tasks(folder: Path) -> None:
    """MMLU's and RULER's forms are those of the repository; the others are lm-eval's, in files of our own."""
    folder.mkdir(exist_ok=True)
    mmlu = yaml.safe_load((OWN_TASKS / "mmlu.yaml").read_text(encoding="utf-8"))
    _write(folder / "mmlu.yaml", mmlu | {"num_fewshot": SHOTS})
    for name in ("ruler.yaml", "ruler_metrics.py"):
        shutil.copy(OWN_TASKS / name, folder)
    problems = _task(
        "problems",
        "generate_until",
        fewshot_split="dev",
        num_fewshot=SHOTS,
        fewshot_config={"sampler": "first_n"},
        doc_to_text="Question: {{question}}\nAnswer:",
        doc_to_target="{{answer}}",
        generation_kwargs=_generation(512, "Question:"),
        **_exact(),
    )
    problems["dataset_kwargs"]["data_files"]["dev"] = "$DATA/problems_dev/$SUBSET.jsonl"
    _write(folder / "problems.yaml", problems)
    instructions = _task(
        "instructions",
        "generate_until",
        doc_to_text="{{prompt}}",
        doc_to_target="{{answer}}",
        generation_kwargs=_generation(1280),
        **_exact(),
    )
    _write(folder / "instructions.yaml", instructions)
    perplexities = [
        {"metric": name, "aggregation": "weighted_perplexity", "higher_is_better": False}
        for name in ("word_perplexity", "byte_perplexity")
    ]
    articles = _task(
        "articles", "loglikelihood_rolling", doc_to_text="", doc_to_target="{{text}}", metric_list=perplexities
    )
    _write(folder / "articles.yaml", articles)


def _suite(how: Amount) -> Record:
    def group(name: str, title: str, metric: str, **more: Any) -> Record:
        measure = "perplexity" if "perplexity" in metric else "accuracy"
        return {"name": name, "title": title, "measure": measure, "metric": metric, "slice": name} | more

    subjects: Record = {f"subject_{number:02}": {} for number in range(SUBJECTS)}
    return {
        "name": "rehearsal",
        "data": "data",
        "max_length": how.longest + 4096,
        "block_items": 200,
        "groups": [
            group(
                "mmlu",
                "generated questions in MMLU's form, 5-shot",
                "acc",
                task="tasks/mmlu.yaml",
                num_fewshot=SHOTS,
                slice_fields=["subject"],
                subsets=subjects,
                **({"blocks": "by_reference_margin"} if SUBJECTS * how.questions >= 1000 else {}),
            ),
            group("wikitext", "generated articles", "word_perplexity", task="tasks/articles.yaml", subsets={"all": {}}),
            group(
                "ruler",
                "generated texts in RULER's forms",
                "string_match_all",
                task="tasks/ruler.yaml",
                slice_fields=["kind", "length"],
                subsets={kind: {} for kind in KINDS},
            ),
            group(
                "gsm8k",
                "generated problems in GSM8K's form, 5-shot",
                "exact_match",
                task="tasks/problems.yaml",
                num_fewshot=SHOTS,
                subsets={"all": {}},
            ),
            group(
                "ifeval",
                "generated instructions in IFEval's form",
                "exact_match",
                task="tasks/instructions.yaml",
                chat_template=True,
                subsets={"all": {}},
            ),
        ],
    }


# ---- corpus, policy, family ----


def _write_corpus(folder: Path, how: Amount) -> None:
    """Documents of every slice, and the reference's own answers to the short list of prompts."""
    rng = random.Random(f"{SEED}/corpus")
    drawn = [document(rng, SLICES[n % len(SLICES)], how.document_tokens).answer for n in range(how.documents)]
    records = [
        {"id": f"d{n:04}", "slice": SLICES[n % len(SLICES)], "text": f"{n}. {text}"} for n, text in enumerate(drawn)
    ]
    write_frozen(folder / "corpus", "rehearsal corpus", SEED, {"texts.jsonl": records}, {})
    release = yaml.safe_load((Paths.default().repository / "kl/corpora/release.yaml").read_text(encoding="utf-8"))
    on_policy = release["on_policy"] | {"prompts": "chat", "per_canary": 1}
    corpus = {"name": "rehearsal corpus", "json_lines": [{"path": "corpus/texts.jsonl"}], "on_policy": on_policy}
    _write(folder / "corpus.yaml", corpus)


SOURCE = "ours; what a rehearsal's items can show, which judges no branch"


def _policy(how: Amount) -> Record:
    """`release`, with margins as wide and counts as small as a tenth of its items ask for."""

    def wider(name: str, value: float, **more: Any) -> Record:
        return {"id": name, "margin": {"value": value, "source": SOURCE}} | more

    share = how.draws / 200
    criteria = [
        *_of_few_texts(how, wider),
        wider("mmlu", 0.5, min_scored=1),
        # a reference that recovers nothing is refused where this blocks: no branch could be shown to recover it
        wider("ruler", 0.5, min_scored=1, tier="advisory"),
        wider("ruler-128k", 0.2, min_scored=1, slice=f"ruler/{how.longest}", tier="advisory"),
        wider("failures-structured", 0.2, min_scored=int(2000 * share)),
        wider("failures-freeform", 0.3, min_scored=int(1200 * share)),
        wider("thinking", 0.6, min_scored=int(600 * share)),
    ]
    return {
        "name": "rehearsal",
        "description": "The release policy with the margins that a rehearsal's few items can show.",
        "extends": "release",
        "criteria": criteria,
    }


def _of_few_texts(how: Amount, wider: Callable[..., Record]) -> Iterator[Record]:
    """A share is shown by about 4 / share clusters, and texts of unlike lengths count as fewer."""
    yield wider("kl-worst-documents", min(0.9, 7 / how.documents))
    if how.documents < Amount.documents:
        yield {"id": "kl", "min_clusters": 1}
    if how.articles < Amount.articles:
        yield {"id": "perplexity", "min_clusters": 1}


def _family(folder: Path, branch: Path, reference: Path) -> Record:
    """The shipped family, its two branches in these folders; what its card ships beside the text model is left out."""
    family: Record = yaml.safe_load((Paths.default().families / f"{FAMILY}.yaml").read_text(encoding="utf-8"))
    kept = {name: family["branches"][name] for name in (family["reference"], BRANCH)}
    for each, place in zip(kept.values(), (reference, branch), strict=True):
        each["source"] = {"path": str(place.resolve())}
        each.pop("ships", None)
    return family | {
        "branches": kept,
        "suite": str((folder / "suite.yaml").resolve()),
        "policy": str((folder / "policy.yaml").resolve()),
    }
