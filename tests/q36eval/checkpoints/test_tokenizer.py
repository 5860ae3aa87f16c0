"""A tokenizer's identity moves with what it does once loaded, wherever its files say it, and with nothing else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from q36eval.checkpoints import chat_template_sha256, load_tokenizer, tokenizer_sha256
from q36eval.checkpoints.inspection.tokenizers import text_findings
from q36eval.checkpoints.open_checkpoints import hold
from q36eval.checkpoints.tokenizer import chat_templates
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.app.sandbox_gates import two_tokens_swapped
from tests.raising import raises

SANDBOX = Path(__file__).parents[3] / "data" / "sandbox" / "bf16"
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "config.json")
TEXTS = (
    "Kolik stojí 3 kusy po 1 250 Kč? Sleva 15 %.",
    '{"items": [1, 2.5, null], "name": "Žofie"}',
    "<|im_start|>user\nhello  world\n\n<|im_end|>",
    "e\u0301 \u00e9 <|new|> <|im_end|> <|far|> don't DON'T \t x",
)
NEW = "<|new|>"
Change = Callable[[Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in FILES:
        shutil.copy(SANDBOX / name, copy)
    return copy


def write(name: str, **entries: Any) -> Change:
    """Sets entries of one of its JSON files."""

    def change(folder: Path) -> None:
        file = folder / name
        given = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(given | entries, indent=3))

    return change


def in_core(**entries: Any) -> Change:
    return write("tokenizer.json", **entries)


CORE: dict[str, Any] = json.loads((SANDBOX / "tokenizer.json").read_text())
TRUNCATION = {"max_length": 64, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
SAME: dict[str, Change] = {
    "formatting": write("tokenizer.json"),
    "calibration": in_core(truncation=TRUNCATION),
    "saved again": lambda folder: load_tokenizer(folder).save_pretrained(folder),
    "class by another name": write("tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast"),
    "a default written out": in_core(model=CORE["model"] | {"ignore_merges": False}),
    "the words that are there, listed again": write(
        "tokenizer_config.json",
        added_tokens_decoder={
            str(token["id"]): {key: value for key, value in token.items() if key != "id"}
            for token in CORE["added_tokens"]
        },
    ),
    "a post-processor that only trims offsets": in_core(
        post_processor={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    ),
    "code that is not run": write("tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", None]}),
}
OTHER: dict[str, Change] = {
    "two words swapped": two_tokens_swapped,
    "an extra word": write("tokenizer_config.json", extra_special_tokens=[NEW]),
    "an extra word by name": write("tokenizer_config.json", extra_special_tokens={"image_token": NEW}),
    "an additional word": write("tokenizer_config.json", additional_special_tokens=[NEW]),
    "an added word": write(
        "tokenizer_config.json", added_tokens_decoder={"5000": {"content": "<|far|>", "special": True}}
    ),
    "added_tokens.json": write("added_tokens.json", **{NEW: 3000}),
    "special_tokens_map.json": write("special_tokens_map.json", eos_token="<|endoftext|>"),
    "a class with rules of its own": write("tokenizer_config.json", tokenizer_class="Qwen2Tokenizer"),
    "a normalizer": in_core(normalizer={"type": "NFC"}),
    "a word that is no longer special": in_core(
        added_tokens=[token | {"special": token["content"] != "<|im_start|>"} for token in CORE["added_tokens"]]
    ),
}


def behaviour(folder: Path) -> Any:
    """What it does with the texts, every word it knows, and where an answer ends."""
    tokenizer = load_tokenizer(folder)
    ids = [tokenizer.encode(text) for text in TEXTS]
    back = [tokenizer.decode(each, skip_special_tokens=True) for each in ids]
    words = [tokenizer.decode([id]) for id in range(len(tokenizer))]
    return ids, back, words, tokenizer.eos_token_id, tokenizer.pad_token_id


@pytest.mark.long
@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_what_changes_nothing_keeps_the_identity(change: Change, folder: Path) -> None:
    change(folder)
    assert behaviour(folder) == behaviour(SANDBOX)
    assert tokenizer_sha256(folder) == tokenizer_sha256(SANDBOX)
    assert text_findings(hold(folder), hold(SANDBOX), 1024) == []


@pytest.mark.long
@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_what_changes_a_token_changes_the_identity_and_is_found(change: Change, folder: Path) -> None:
    change(folder)
    assert behaviour(folder) != behaviour(SANDBOX)
    assert tokenizer_sha256(folder) != tokenizer_sha256(SANDBOX)
    findings = text_findings(hold(folder), hold(SANDBOX), 1024)
    assert "tokenizer-differs" in {finding.rule for finding in findings}
    beyond = len(load_tokenizer(folder)) > 1024
    assert ("vocabulary" in {finding.rule for finding in findings}) == beyond


def test_a_setting_that_only_other_versions_honour_is_a_difference_too(folder: Path) -> None:
    """transformers 5 cleans no spaces up after byte-level tokens; transformers 4, which engines pin, does."""
    write("tokenizer_config.json", clean_up_tokenization_spaces=True)(folder)
    assert tokenizer_sha256(folder) != tokenizer_sha256(SANDBOX)


def test_a_tokenizer_that_cannot_be_loaded_is_damage(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": "x"}, "merges": []}}')
    with raises(CorruptCheckpointError, "tokenizer-unreadable"):
        tokenizer_sha256(folder)
    assert {finding.rule for finding in text_findings(hold(folder), hold(SANDBOX), 1024)} == {"unreadable-file"}


def test_folder_without_tokenizer_is_a_usage_error(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with raises(UsageError, "tokenizer-missing"):
        tokenizer_sha256(folder)


def test_templates_are_those_that_transformers_takes_wherever_they_are_kept(folder: Path) -> None:
    default = (folder / "chat_template.jinja").read_text()
    assert chat_template_sha256(folder) == chat_template_sha256(SANDBOX)
    (folder / "chat_template.jinja").unlink()
    write("tokenizer_config.json", chat_template=default)(folder)
    assert chat_template_sha256(folder) == chat_template_sha256(SANDBOX)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("for tools")
    assert chat_templates(folder) == {"tool_use": "for tools"}, "files take the place of what the settings say"
    (folder / "chat_template.jinja").write_text(default)
    assert (
        chat_templates(folder) == load_tokenizer(folder).chat_template == {"default": default, "tool_use": "for tools"}
    )
    findings = text_findings(hold(folder), hold(SANDBOX), 1024)
    assert [(each.rule, each.subject) for each in findings] == [
        ("chat-template-differs", "additional_chat_templates/tool_use.jinja")
    ]
