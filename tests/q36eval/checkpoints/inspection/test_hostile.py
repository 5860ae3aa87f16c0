"""Files made to break their reader end in a sentence that names them, in bounded time; a damaged reference is no fault
of the branch."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.targets import load_family, resolve
from q36eval.checkpoints import load_model
from q36eval.checkpoints.inspection import Inspection, Section, inspect_checkpoint
from q36eval.checkpoints.inspection.stored import stored_label, units_of
from q36eval.checkpoints.reader import open_checkpoint
from q36eval.checkpoints.weights import index_weights
from q36eval.config import Paths
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.branches import folder_of
from tests.raising import raises

from .damage import edit_header, edit_json, edit_tensors
from .hostile import DTYPES, FILES, INDEX, INDEXES, TENSORS, Change, read_as

REPOSITORY = Path(__file__).parents[4]
SANDBOX = REPOSITORY / "data" / "sandbox"
SECONDS = 20
"""An inspection takes one."""


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"no end after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def whole(branch: str, tmp_path: Path) -> Path:
    paths = Paths(REPOSITORY, tmp_path / "state")
    return resolve(branch, load_family(None, paths), paths).folder


def changed(branch: str, change: Change, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(whole(branch, tmp_path), folder)
    change(folder)
    return folder


def inspected(folder: Path, reference: Path | None = SANDBOX / "bf16") -> Inspection:
    return inspect_checkpoint(folder, reference, weights_workers=2)


def blocking(found: Inspection) -> list[str]:
    return [f"{finding.subject}: {finding.message}" for finding in found.blocking]


@pytest.mark.long
@pytest.mark.parametrize(("branch", "change", "named"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
def test_a_hostile_file_is_named(branch: str, change: Change, named: str, tmp_path: Path) -> None:
    folder = changed(branch, change, tmp_path)
    assert any(named in message for message in blocking(inspected(folder)))
    with pytest.raises(CorruptCheckpointError) as refused:
        load_model(folder)
    assert named in str(refused.value) or named == "config.json"
    assert "\n" not in str(refused.value)


def test_a_deep_tokenizer_is_named(tmp_path: Path) -> None:
    folder = changed("main", lambda folder: (folder / "tokenizer.json").write_text('{"a":' * 200_000), tmp_path)
    assert any("tokenizer.json is not valid JSON" in message for message in blocking(inspected(folder)))


@pytest.mark.long
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_pipe_in_the_place_of_a_file_is_a_missing_file(name: str, tmp_path: Path) -> None:
    """Opened, it would wait for a writer for ever."""

    def put_a_pipe(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    folder = changed("main", put_a_pipe, tmp_path)
    assert any("missing" in message for message in blocking(inspected(folder)))


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["generation_config.json", "tokenizer.json", "chat_template.jinja", "additional_chat_templates/other.jinja"],
)
def test_a_text_of_a_tebibyte_is_named_and_not_read(name: str, tmp_path: Path) -> None:
    """A file with a hole in it takes no room on the disk, and all of the memory."""

    def enlarge(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
        os.truncate(folder / name, 2**40)

    folder = changed("main", enlarge, tmp_path)
    assert any(f"{name} takes 1,099,511,627,776 bytes" in message for message in blocking(inspected(folder)))


def test_a_configuration_of_a_tebibyte_is_named_and_not_read(tmp_path: Path) -> None:
    folder = changed("main", lambda folder: os.truncate(folder / "config.json", 2**40), tmp_path)
    assert any("config.json takes 1,099,511,627,776 bytes" in message for message in blocking(inspected(folder)))
    with raises(CorruptCheckpointError, "file-too-large"):
        load_model(folder)


def test_more_templates_than_anybody_uses_are_refused(tmp_path: Path) -> None:
    """Each may take seconds to be tried."""

    def add(folder: Path) -> None:
        (folder / "additional_chat_templates").mkdir()
        for number in range(200):
            text = "{% for i in range(99999) %}{% for j in range(40) %}{% endfor %}{% endfor %}" + str(number)
            (folder / "additional_chat_templates" / f"other{number}.jinja").write_text(text)

    folder = changed("main", add, tmp_path)
    assert any("holds 201 chat templates, and 16 are read at most" in one for one in blocking(inspected(folder)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "entry"), [("tokenizer_config.json", "extra_special_tokens"), ("tokenizer.json", "added_tokens")]
)
def test_a_vocabulary_with_a_flood_of_added_words_is_refused(file: str, entry: str, tmp_path: Path) -> None:
    """transformers takes minutes over them."""

    def add(folder: Path) -> None:
        edit_json(folder, file, lambda own: own.update({entry: [f"<{number}>" for number in range(200_000)]}))

    folder = changed("main", add, tmp_path)
    assert any(f"{file} adds 200,000 words" in message for message in blocking(inspected(folder)))


@pytest.mark.long
@pytest.mark.parametrize("text", INDEXES)
def test_an_index_of_the_wrong_kind_is_named(text: str, tmp_path: Path) -> None:
    folder = changed("main", lambda folder: (folder / INDEX).write_text(text), tmp_path)
    found = inspected(folder)
    assert any("weight_map does not map" in message for message in blocking(found))
    with raises(CorruptCheckpointError, "index-malformed"):
        open_checkpoint(folder)


@pytest.mark.long
@pytest.mark.parametrize(
    ("branch", "change", "named"), [case[1:] for case in TENSORS], ids=[case[0] for case in TENSORS]
)
def test_a_hostile_tensor_is_named_and_the_others_are_judged(
    branch: str, change: Change, named: str, tmp_path: Path
) -> None:
    folder = changed(branch, change, tmp_path)
    found = inspected(folder)
    assert {finding.subject.removesuffix("_shape") for finding in found.blocking} == {named}
    assert set(found.measured) == set(Section)
    assert found.compared_weights >= inspected(whole(branch, tmp_path)).compared_weights - 1
    assert inspected(folder, None).blocking
    with pytest.raises(CorruptCheckpointError, match=named.removesuffix(".weight")):
        load_model(folder)


@pytest.mark.long
@pytest.mark.parametrize(("branch", "part", "dtype"), DTYPES)
def test_a_part_in_another_dtype_is_refused(branch: str, part: str, dtype: str, tmp_path: Path) -> None:
    """Also without a reference, where no error could give it away."""
    folder = changed(branch, read_as(part, dtype), tmp_path)
    name = part.rpartition(".")[2]
    assert any(f"{name} is stored as torch." in message for message in blocking(inspected(folder, None)))
    with raises(CorruptCheckpointError, "tensor-dtype", name):
        load_model(folder)


def test_a_float8_with_fewer_bits_is_called_by_its_name(tmp_path: Path) -> None:
    folder = changed("fp8-head", read_as("lm_head.weight", "F8_E5M2"), tmp_path)
    head = units_of(index_weights(open_checkpoint(folder), light=True).weights)["lm_head.weight"]
    assert stored_label(head, (1024, 256)) == "FP8 E5M2 block 128x128"


def _as_doubles(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"].double()}))


def _not_finite(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors["lm_head.weight"].view(-1)[:1].fill_(float("nan")))


def _truncated(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1000])


def _without_sizes(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "qwen3_5_moe_text"}')


def _other_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def _malformed(folder: Path) -> None:
    def malform(header: dict[str, Any]) -> None:
        header["lm_head.weight"]["dtype"] = "F7"

    edit_header(folder, malform)


@pytest.mark.long
@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (_as_doubles, "reference-unusable"),
        (_not_finite, "reference-unusable"),
        (_truncated, "header-malformed"),
        (_without_sizes, "config-incomplete"),
        (_other_tokenizer, "json-malformed"),
        (_malformed, "header-malformed"),
    ],
)
def test_a_damaged_reference_is_a_usage_error_that_names_it(damage: Change, code: str, tmp_path: Path) -> None:
    reference = changed("bf16", damage, tmp_path)
    with raises(UsageError, code, reference):
        inspected(folder_of("main"), reference)


def test_a_folder_without_any_checkpoint_is_a_usage_error(tmp_path: Path) -> None:
    with raises(UsageError, "not-a-checkpoint"):
        inspected(SANDBOX)
    for name in ("config.json", "model.safetensors"):  # half a checkpoint is a damaged one
        folder = changed("main", lambda folder, name=name: (folder / name).unlink(), tmp_path / name)
        assert inspected(folder).blocking
