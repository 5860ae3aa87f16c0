"""Every kind of damage is found, named and blocks; every undamaged branch is clean, wherever it lies."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from q36eval.app.cli.inspect import inspect
from q36eval.app.sandbox import build, kind_of, names
from q36eval.app.targets import load_family, resolve
from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.inspection import Finding, Inspection, Promise, Section, Severity, inspect_checkpoint
from q36eval.checkpoints.inspection.against import difference
from q36eval.checkpoints.inspection.examination import not_judged
from q36eval.checkpoints.inspection.findings import OF_ITSELF
from q36eval.checkpoints.inspection.left_out import SHIPPED
from q36eval.config import Paths
from q36eval.errors import UsageError
from tests.branches import folder_of
from tests.profiles import LONG

from . import contradictions, damage, damaged_tensors, tiny
from .cases import CASES, UNSEEN, Case, Unseen

REPOSITORY = Path(__file__).parents[4]
SANDBOX = REPOSITORY / "data" / "sandbox"
SHIPS = tuple(Promise(tensors=part, stored="unquantized", source="the card") for part in SHIPPED.values())


def inspected(folder: Path, **options: object) -> Inspection:
    return inspect_checkpoint(folder, SANDBOX / "bf16", weights_workers=2, **options)  # type: ignore[arg-type]


def command(*arguments: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """`q36eval inspect` as the program runs it: (exit code, what it printed)."""
    monkeypatch.setenv("Q36EVAL_STATE", str(state))
    program = typer.Typer()
    program.command()(lambda: None)
    program.command("inspect")(inspect)
    done = CliRunner().invoke(program, ["inspect", *arguments], standalone_mode=False)
    if done.exception:
        raise done.exception
    return int(done.return_value), done.stdout


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """(branch, reference) of a checkpoint by its name in the list of cases; each written once."""
    folder = tmp_path_factory.mktemp("whole")

    def named(name: str) -> tuple[Path, Path]:
        if kind_of(name, SANDBOX) != "computed":
            return build(name, SANDBOX, folder / "built"), SANDBOX / "bf16"
        if not (folder / name).exists():
            tiny.write(name, folder / name)
        return folder / name / "branch", folder / name / "reference"

    return named


def promised(name: str) -> tuple[Promise, ...]:
    return SHIPS if name == "tiny-nvfp4" else ()


@pytest.mark.long
@pytest.mark.sized
@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES if case.quick or LONG])
def test_damage_is_named_and_blocks(
    case: Case, whole: Callable[[str], tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch, reference = whole(case.checkpoint)
    folder = tmp_path / "copy"
    shutil.copytree(branch, folder)
    # what some damages take from the reference lies beside the copy
    (tmp_path / "reference").symlink_to(reference)
    subject = case.damage(folder) if case.subject is None else (case.damage(folder), case.subject)[1]
    if reference == SANDBOX / "bf16":
        exit_code, output = command(str(folder), "--json", state=tmp_path / "state", monkeypatch=monkeypatch)
        assert exit_code == 1
        blocking = [Finding.model_validate(found) for found in json.loads(output)["findings"]]
    else:
        found = inspect_checkpoint(folder, reference, weights_workers=1, promises=promised(case.checkpoint))
        blocking = list(found.findings)
    rules = {one.rule for one in blocking if one.severity is Severity.BLOCKING and one.subject == subject}
    assert case.rules <= rules
    assert case.at_least or case.rules == rules


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({case.checkpoint for case in CASES} - {*names()}))
def test_no_false_alarm_on_what_was_damaged(name: str, whole: Callable[[str], tuple[Path, Path]]) -> None:
    branch, reference = whole(name)
    found = inspect_checkpoint(branch, reference, weights_workers=1, promises=promised(name))
    assert not found.blocking
    assert set(found.measured) == set(Section)
    assert found.unbounded_weights == 0


@pytest.mark.long
@pytest.mark.parametrize("unseen", UNSEEN, ids=[unseen.what for unseen in UNSEEN])
def test_what_files_do_not_tell_is_not_called_damage(
    unseen: Unseen, whole: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    """That of inputs and caches is what `tests/kl/test_unseen.py` measures."""
    branch, reference = whole(unseen.checkpoint)
    shutil.copytree(branch, tmp_path / "copy")
    before = open_checkpoint(branch)
    unseen.damage(tmp_path / "copy")
    after = open_checkpoint(tmp_path / "copy")
    assert any(difference(before, after, name) for name in {*before.tensors, *after.tensors})
    promises = [
        Promise(tensors=one.tensors, stored="FP8", source="the card") for one in promised(unseen.checkpoint)[:1]
    ]
    found = inspect_checkpoint(tmp_path / "copy", reference, weights_workers=1, promises=tuple(promises))
    assert not found.blocking


def test_cases_have_ids_of_their_own_and_cover_every_format() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    formats = {case.checkpoint for case in CASES if case.quick}
    assert formats >= {*tiny.MANIFEST}, "every format is damaged in the quick profile"


@pytest.mark.long
@pytest.mark.parametrize(
    "branch",
    [
        "bf16",
        "main",
        "fp8-head",
        "fp8-head-embed",
        "w4a16",
        "gptq-int4",
        "nvfp4-modelopt",
        "nvfp4-mixed",
        "int2-experts",
    ],
)
def test_no_false_alarm_on_any_branch(branch: str, tmp_path: Path) -> None:
    paths = Paths(REPOSITORY, tmp_path)
    found = inspected(resolve(branch, load_family(None, paths), paths).folder)
    assert not found.blocking
    assert set(found.measured) == set(Section)
    assert found.unbounded_weights == 0
    coarse = [finding for finding in found.findings if finding.rule == "coarse-scheme"]
    assert bool(coarse) == (branch == "int2-experts")


def test_an_undamaged_copy_is_clean_and_shown_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "[bold]copy"
    shutil.copytree(folder_of("main"), folder)
    exit_code, output = command(str(folder), "--against", "fp8-head", state=tmp_path, monkeypatch=monkeypatch)
    assert exit_code == 0
    assert "[bold]copy" in output.replace("\n", "")
    assert "lm_head.weight: BF16" in output


HOSTILE = "model.x\n::error file=a::passed\x1b[31m\u202e.weight"


@pytest.mark.long
def test_what_a_checkpoint_calls_its_tensors_moves_no_cursor_and_is_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipeline's log a line that begins with `::` is a command to its runner."""
    folder = tmp_path / "copy"
    shutil.copytree(folder_of("main"), folder)
    damage.edit_tensors(folder, lambda tensors: tensors.update({HOSTILE: torch.zeros(2)}))
    damage.edit_json(folder, "config.json", lambda config: config.update(architectures=["Own\n::error::passed\x1b[2J"]))
    for more in ([], ["--against", "fp8-head"]):
        _, output = command(str(folder), *more, state=tmp_path / "state", monkeypatch=monkeypatch)
        assert "unexpected-tensor" in output
        assert "::passed" not in output.replace(":: ", "")
        assert not [line for line in output.splitlines() if line.startswith("::")]
        assert not {"\x1b", "\u202e"} & set(output)


def test_every_fault_of_a_file_is_told_and_names_its_tensor(tmp_path: Path) -> None:
    told = {
        "truncated": ["ends at byte"],
        "overlapping_offsets": ["overlaps the tensor before it", "follows bytes that belong to nothing"],
        "many_header_faults": ["has the unknown dtype 'F7'"] * 3 + ["overlaps the tensor before it"] * 2,
    }
    for name, words in told.items():
        folder = tmp_path / name
        shutil.copytree(folder_of("main"), folder)
        getattr(damage, name)(folder)
        messages = [finding.message for finding in inspected(folder).blocking]
        assert len(messages) == len(words)
        for message, word in zip(messages, words, strict=True):
            assert word in message
            assert "tensor 'model.layers." in message


def test_only_the_head_differs_between_main_and_fp8_head() -> None:
    against = inspected(SANDBOX / "fp8-head", against=folder_of("main")).against
    assert against is not None
    assert set(against.differences) == {"lm_head.weight", "lm_head.weight_scale"}
    assert set(against.different) == {"lm_head"}
    assert against.identical["routed experts"] == 432
    assert "lm_head" not in against.identical


@pytest.mark.long
def test_a_gptq_head_as_it_is_declared_is_clean(tmp_path: Path) -> None:
    """Declared and stored quantized; or declared, excluded by a rule, and stored unquantized."""
    for name in ("quantized", "excluded"):
        shutil.copytree(build("gptq-int4", SANDBOX, tmp_path / "built"), tmp_path / name)
        damaged_tensors.head_declared_as_gptq(tmp_path / name)
    damaged_tensors.gptq_head(tmp_path / "quantized")
    rule = {"-:lm_head": {}}
    damage.edit_json(
        tmp_path / "excluded", "config.json", lambda config: config["quantization_config"]["dynamic"].update(rule)
    )
    for name, labels in (("quantized", ("INT4 g128", "INT4 g128")), ("excluded", ("unquantized", "BF16"))):
        clean = inspected(tmp_path / name)
        assert not clean.blocking
        assert [(row.declared, row.stored) for row in clean.coverage if row.tensor_class == "lm_head"] == [labels]


@pytest.mark.long
def test_what_is_left_out_is_compared_with_the_references_and_shown_where_no_card_ships_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either layout's names; the multi-token head, which the branch alone has, and a zero whose sign differs."""
    reference, folder, zero = tmp_path / "reference", tmp_path / "copy", torch.zeros(3)
    shutil.copytree(SANDBOX / "bf16", reference)
    shutil.copytree(folder_of("main"), folder)
    theirs = {"visual.a": zero, "visual.b": zero, "visual.c": zero, "visual.d": zero}
    mine = {"model.visual.a": zero, "model.visual.b": -zero, "model.visual.c": zero, "model.visual.e": zero}
    damage.edit_tensors(reference, lambda tensors: tensors.update(theirs))
    damage.edit_tensors(folder, lambda tensors: tensors.update({**mine, "mtp.fc.weight": zero}))
    inspection = inspect_checkpoint(folder, reference, weights_workers=2)
    assert not inspection.blocking
    assert [row.model_dump() for row in inspection.left_out_against_reference] == [
        {"reason": "vision tower", "identical": 2, "different": ("model.visual.b",), "only_here": 1, "only_there": 1}
    ]
    arguments = (str(folder), "--reference", str(reference))
    exit_code, output = command(*arguments, state=tmp_path / "state", monkeypatch=monkeypatch)
    assert exit_code == 0
    assert "2 identical, 1 different, 1 only here, 1 only there" in output
    assert "left out (multi-token prediction): 1 tensors\n" in output


@pytest.mark.long
def test_what_is_excepted_by_name_does_not_block(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(folder_of("main"), folder)
    damaged_tensors.expert_left_out(folder)
    changed = damaged_tensors.other_unquantized_weight(folder)
    assert len(inspected(folder).blocking) == 4
    assert not inspected(folder, excepted=(changed, f"{damage.EXPERT}.*")).blocking


def test_a_value_left_out_is_the_default_it_stands_for(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(folder_of("main"), folder)
    damage.edit_json(folder, "config.json", lambda config: config.pop("rms_norm_eps"))
    assert not inspected(folder).blocking


@pytest.mark.long
def test_entries_that_transformers_does_not_know_do_not_block(tmp_path: Path) -> None:
    """Published configurations hold them, and producers drop them: told, and no more. One that it knows blocks."""
    folder = tmp_path / "copy"
    shutil.copytree(folder_of("main"), folder)
    entries = {"mamba_ssm_dtype": "float32", "output_gate_type": "swish"}
    damage.edit_json(folder, "config.json", lambda config: config.update(entries))
    inspection = inspected(folder)
    assert not inspection.blocking
    told = [finding.message for finding in inspection.findings if finding.rule == "computation-differs"]
    assert [message.split()[0] for message in told] == sorted(entries)
    damage.edit_json(folder, "config.json", lambda config: config.update(attention_bias=True))
    assert [finding.message.split()[0] for finding in inspected(folder).blocking] == ["attention_bias"]


ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
READ_OTHERWISE: list[tuple[dict[str, Any], str]] = [
    ({"norm_topk_prob": False}, "engines-read-otherwise"),
    ({"norm_topk_prob": None}, "engines-read-otherwise"),  # vLLM takes null for false
    ({"attn_output_gate": False}, "engines-read-otherwise"),
    ({"attn_output_gate": None}, "engines-read-otherwise"),
    ({"is_causal": False}, "engines-read-otherwise"),
    ({"qkv_bias": True}, "engines-read-otherwise"),
    ({"layer_scale": True}, "engines-read-otherwise"),
    ({"dual_chunk_attention_config": {"chunk_size": 64}}, "engines-read-otherwise"),
    ({"mlp_only_layers": [0]}, "engines-read-otherwise"),
    ({"decoder_sparse_step": 2}, "engines-read-otherwise"),
    ({"rope_theta": 1e6}, "rope-contradicts"),
    ({"rope_scaling": {"rope_type": "default", "rope_theta": 5.0}}, "rope-contradicts"),
    ({"rope_parameters": ROPE | {"type": "dynamic"}}, "rope-contradicts"),
    ({"rope_parameters": ROPE | {"rope_type": "dynamic", "type": "default"}}, "rope-contradicts"),
    ({"rope_scaling": {"type": "yarn"}}, "rope-contradicts"),
    ({"eos_token_id": 5}, "ends-contradict"),
]
MEASURED = {
    "norm_topk_prob": True,
    "attn_output_gate": True,
    "is_causal": True,
    "qkv_bias": None,
    "layer_scale": False,
    "dual_chunk_attention_config": None,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "rope_parameters": ROPE | {"type": "default"},
}


@pytest.mark.long
@pytest.mark.parametrize(("entries", "rule"), READ_OTHERWISE)
def test_an_entry_by_which_an_engine_serves_another_model_blocks(
    entries: dict[str, Any], rule: str, tmp_path: Path
) -> None:
    """transformers gives bit-equal logits with most of them, so nothing that is measured here can tell."""
    folder = tmp_path / "copy"
    shutil.copytree(folder_of("main"), folder)
    damage.edit_json(folder, "config.json", lambda config: config.update(MEASURED | {"rope_theta": 10000.0}))
    assert not inspected(folder).blocking
    damage.edit_json(folder, "config.json", lambda config: config.update(entries))
    assert {finding.rule for finding in inspected(folder).blocking} - {"computation-differs"} == {rule}
    assert rule in {finding.rule for finding in inspect_checkpoint(folder).blocking}, "whatever the reference says"


def _nested(config: dict[str, Any]) -> None:
    """As the whole model's configuration holds the text model's."""
    text = {key: config.pop(key) for key in list(config) if key not in ("architectures", "quantization_config")}
    config.update(text_config=text, model_type="qwen3_5_moe", architectures=["Qwen3_5MoeForConditionalGeneration"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("beside", "rule"),
    [({"eos_token_id": 5}, "ends-contradict"), ({"quantization_config": {"quant_method": "fp8"}}, "declared-twice")],
)
def test_what_is_said_beside_the_text_model_is_held_to_what_is_said_within(
    beside: dict[str, Any], rule: str, tmp_path: Path
) -> None:
    """Some engines read one, some the other."""
    folder = tmp_path / "copy"
    shutil.copytree(folder_of("main"), folder)

    def change(config: dict[str, Any]) -> None:
        _nested(config)
        if "quantization_config" in beside:
            config["text_config"]["quantization_config"] = beside["quantization_config"]
        else:
            config.update(beside)

    damage.edit_json(folder, "config.json", _nested)
    assert not inspected(folder).blocking
    shutil.rmtree(folder)
    shutil.copytree(folder_of("main"), folder)
    damage.edit_json(folder, "config.json", change)
    assert {finding.rule for finding in inspected(folder).blocking} == {rule}


def test_code_that_comes_with_a_checkpoint_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(folder_of("main"), folder)
    (folder / "modeling_own.py").write_text("raise SystemExit")
    damage.edit_json(
        folder, "tokenizer_config.json", lambda own: own.update(auto_map={"AutoTokenizer": ["own.T", None]})
    )
    inspection = inspected(folder)
    told = next(finding for finding in inspection.findings if finding.rule == "own-code")
    assert told.severity is Severity.ADVISORY
    assert "auto_map in tokenizer_config.json, modeling_own.py" in told.message


def test_a_quantized_cache_over_unquantized_weights_is_clean(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(SANDBOX / "bf16", folder)
    contradictions.quantized_cache_alone(folder)
    assert not inspected(folder).blocking
    damage.edit_json(folder, contradictions.OWN_FILE, lambda own: own["quantization"].update(quant_algo="FP8"))
    assert "declared-scheme-absent" in {finding.rule for finding in inspected(folder).blocking}


def test_what_cannot_be_judged_is_not_measured(tmp_path: Path, bf16_folder: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(folder_of("main"), folder)
    damage.truncated(folder)
    assert set(inspected(folder).measured) == {Section.INTEGRITY, Section.CONFIGURATION}
    assert Section.BOUNDS not in inspect_checkpoint(folder_of("main")).measured
    other_sizes = inspect_checkpoint(folder_of("main"), bf16_folder)
    assert other_sizes.blocking
    assert set(other_sizes.measured) == {*OF_ITSELF, Section.CONFIGURATION}


@pytest.mark.parametrize("text", ["{", "[]", '{"text_config": 3}', '{"layer_types": 3, "num_hidden_layers": []}'])
def test_a_configuration_of_any_kind_is_reported_and_never_raised(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(folder_of("main"), folder)
    (folder / "config.json").write_text(text)
    (folder / "generation_config.json").write_text("[]")
    (folder / "tokenizer.json").write_text('{"model": {"vocab": 3}}')
    assert inspected(folder).blocking


def test_a_folder_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        inspect_checkpoint(tmp_path / "nowhere")


def test_a_section_left_unjudged_without_a_reason_is_no_pass() -> None:
    judged = [*OF_ITSELF, Section.CONFIGURATION]
    assert [finding.rule for finding in not_judged(judged, True, [])] == ["not-judged"]
    assert not not_judged(judged, False, [])
    assert not not_judged(list(Section), True, [])
