"""The corpora of the shipped suites: frozen from a mirror of the hub as planned, and refused where they are not."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from q36eval.chat import rendered_chat
from q36eval.config import Family, Paths
from q36eval.errors import UsageError
from q36eval.kl.corpus_plan import plan_of
from q36eval.kl.on_policy import OnPolicySettings
from q36eval.kl.planning import refuse_reserved_slices
from q36eval.run.corpora import counts, freeze_corpus
from q36eval.run.declared_figures import Subject, declared_for
from q36eval.run.materials import corpus_of, on_policy_prompts
from tests.evals.hub_mirror import cache, use_cache
from tests.raising import raises

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "data/sandbox/bf16"
STRICT = ROOT / "tests/canaries/template/strict.jinja"
LANGUAGES = ("ces_Latn", "deu_Latn", "fra_Latn", "spa_Latn", "zho_Hans", "jpn_Jpan")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the hub that holds the plans' datasets in their own schemas, with rows of ours."""
    from datasets import Features, Value

    root, text = tmp_path_factory.mktemp("hub"), Value("string")

    def write(name: str, config: str, splits: dict[str, list[dict[str, str]]]) -> None:
        columns = next(iter(splits.values()))[0]
        cache(root / "datasets", name, config, splits, Features({column: text for column in columns}))

    lines = [
        line
        for number in range(62)
        for line in (
            "",
            f" = Place {number} = \n",
            "",
            *(f" Line {n} of place {number} tells of a mill . \n" for n in range(60)),
        )
    ]
    write("Salesforce/wikitext", "wikitext-2-raw-v1", {"test": [{"text": line} for line in lines]})
    programs = [{"prompt": f"def f{n}(x):\n", "canonical_solution": f"    return x + {n}\n"} for n in range(164)]
    write("openai/openai_humaneval", "default", {"test": programs})
    sums = [{"question": f"{n} + 2?", "answer": f"It is {n + 2}.\n#### {n + 2}"} for n in range(220)]
    write("openai/gsm8k", "main", {"test": sums})
    passages = {
        split: [{"link": f"page/{n // 6}", "flores_passage": f"{split}: passage {n // 2}"} for n in range(900)]
        for split in LANGUAGES
    }
    write("facebook/belebele", "default", passages)
    return root


@pytest.fixture
def data(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """Where suites look, without any frozen data, and the cache without a network."""
    use_cache(home, monkeypatch)
    (tmp_path / "data").mkdir()
    for shipped in ("prompts", "families"):
        (tmp_path / "data" / shipped).symlink_to(ROOT / "data" / shipped)
    return Paths(tmp_path, tmp_path)


def frozen(suite: str, data: Paths) -> Path:
    folder = data.data / "corpus" / suite
    assert freeze_corpus(suite, TOKENIZER, folder) is not None
    return folder


@pytest.mark.long
def test_release_brings_the_documents_that_its_plan_names(data: Paths) -> None:
    folder = frozen("release", data)
    config, documents = corpus_of("release", None, data)
    found = counts(documents)
    assert found["documents"] == 124 + 164 + 200 + 6 * 70 + 120 + 120
    # pieces of an article, passages of a page in whatever language, and dialogues of a template stand together
    assert found["clusters"] == 62 + 164 + 200 + 6 * 70 // 3 + 120 + 40
    assert {name: found[name] for name in ("wikitext", "code", "czech", "japanese", "json", "tool_dialogue")} == {
        "wikitext": 124,
        "code": 164,
        "czech": 70,
        "japanese": 70,
        "json": 120,
        "tool_dialogue": 120,
    }
    assert max(len(document.text) for document in documents if document.slice == "wikitext") <= 1500
    assert not {d.text.partition(": ")[2] for d in documents if d.slice == "czech"} & {
        d.text.partition(": ")[2] for d in documents if d.slice == "german"
    }
    refuse_reserved_slices(documents)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    licences = {source["repository"]: source["licence"] for source in manifest["sources"]}
    assert licences["facebook/belebele"] == "CC-BY-SA-4.0"
    assert len(manifest["sources"]) == 3 + len(LANGUAGES)
    assert config.on_policy.prompts == "release"
    subject = Subject(Family.load(data.families / "qwen3.6-35b-a3b.yaml"), "release")
    of_texts = {each.slice for each in declared_for(subject, data).figures if each.key.startswith("kl.kl_divergence[")}
    assert {name for name in of_texts if "=" not in name} - {"all"} == {document.slice for document in documents}
    assert corpus_of("extended", None, data)[1] == documents
    again = data.data / "again"
    freeze_corpus("release", TOKENIZER, again)
    assert {p.name: p.read_bytes() for p in again.iterdir()} == {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.long
def test_what_is_not_frozen_or_was_changed_is_one_sentence(data: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(UsageError, "frozen-data-missing", "q36eval data freeze quick"):
        corpus_of("quick", None, data)
    folder = frozen("quick", data)
    assert len(corpus_of("quick", None, data)[1]) == 300
    (folder / "json.jsonl").write_text("{}\n", encoding="utf-8")
    with raises(UsageError, "frozen-data-damaged", "json.jsonl"):
        corpus_of("quick", None, data)
    plan = plan_of("quick")
    monkeypatch.setattr("q36eval.run.corpora.plan_of", lambda suite: plan.model_copy(update={"seed": 1}))
    with raises(UsageError, "frozen-data-outdated", "quick"):
        corpus_of("quick", None, data)


def test_a_dataset_that_cannot_be_had_leaves_nothing_behind(
    tmp_path: Path, data: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cache(tmp_path / "nothing", monkeypatch)
    with pytest.raises(UsageError, match="Salesforce/wikitext"):
        freeze_corpus("release", TOKENIZER, data.data / "corpus" / "release")
    assert not (data.data / "corpus").exists() or not any((data.data / "corpus").iterdir())


@pytest.mark.parametrize("template", [None, STRICT], ids=["sandbox", "strict"])
def test_a_template_renders_the_release_prompts_and_the_tool_dialogues(template: Path | None) -> None:
    paths = Paths(ROOT, ROOT)
    asked = [p for p in on_policy_prompts(OnPolicySettings(prompts="release", per_canary=0), paths)]
    assert len(asked) >= 200
    assert {p.slice for p in asked} == {"on_policy/chat", "on_policy/tools", "on_policy/reasoning"}
    assert sum(p.enable_thinking for p in asked) >= 20
    tokenizer: Any = AutoTokenizer.from_pretrained(TOKENIZER, local_files_only=True)
    if template is not None:
        tokenizer.chat_template = template.read_text(encoding="utf-8")
    for prompt in asked:
        text = rendered_chat(tokenizer, prompt.messages, prompt.tools, enable_thinking=prompt.enable_thinking)
        assert prompt.messages[0]["content"] in text
        assert all(tool["function"]["name"] in text for tool in prompt.tools)
        assert "{" not in prompt.messages[0]["content"]
    assert len(on_policy_prompts(OnPolicySettings(per_canary=0), paths)) == 16
