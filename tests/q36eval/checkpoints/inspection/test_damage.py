"""Every kind of damage is found, named and blocks; every undamaged branch is clean, wherever it lies."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from q36eval.app.cli.inspect import inspect
from q36eval.app.sandbox import build
from q36eval.app.targets import load_family, resolve
from q36eval.checkpoints.inspection import Inspection, Section, Severity, inspect_checkpoint
from q36eval.checkpoints.inspection.examination import not_judged
from q36eval.checkpoints.inspection.findings import OF_ITSELF
from q36eval.config import Paths
from q36eval.errors import UsageError

from . import contradictions, damage, damaged_scales, damaged_tensors

REPOSITORY = Path(__file__).parents[4]
SANDBOX = REPOSITORY / "data" / "sandbox"
pytestmark = pytest.mark.slow
DAMAGES = [
    ("main", "truncated", "unreadable-file"),
    ("main", "flipped_header_byte", "unreadable-file"),
    ("main", "overlapping_offsets", "unreadable-file"),
    ("main", "malformed_pattern", "quantization-not-read"),
    ("main", "wrong_shard", "index"),
    ("main", "stray_file", "stray-file"),
    ("main", "stored_twice", "stored-twice"),
    ("main", "global_scale_off_by_two", "beyond-scheme error-outlier"),
    ("main", "global_scale_off_by_half", "beyond-scheme error-outlier"),
    ("main", "zeroed_expert_scales", "zero-scale"),
    ("main", "one_zeroed_group", "zero-scale"),
    ("main", "swapped_experts", "beyond-scheme error-outlier"),
    ("main", "uniform_poison", "beyond-scheme"),
    ("main", "nan_in_bf16", "beyond-scheme non-finite unquantized-differs"),
    ("main", "nan_in_what_is_left_out", "non-finite"),
    ("main", "short_head", "shape"),
    ("main", "exchanged_tokens", "tokenizer-differs"),
    ("main", "token_without_embedding", "tokenizer-differs vocabulary"),
    ("main", "missing_chat_template", "chat-template-missing"),
    ("main", "other_chat_template", "chat-template-differs"),
    ("main", "other_generation_config", "generation-config-differs"),
    ("main", "no_architectures", "architecture"),
    ("main", "other_top_k", "computation-differs"),
    ("main", "top_k_by_default", "computation-differs"),
    ("main", "other_layer_types", "layer-types"),
    ("main", "head_that_would_be_ignored", "tied-head unexpected-tensor"),
    ("main", "quantized_linear_attention", "beyond-scheme"),
    ("main", "dead_ignore_list", "ignore-list-matches-nothing"),
    ("main", "declared_but_not_stored", "not-as-declared"),
    ("main", "dead_group", "declared-scheme-absent"),
    ("main", "expert_left_out", "expert-left-out"),
    ("main", "other_unquantized_weight", "unquantized-differs"),
    ("fp8-head", "transposed_block_scales", "declared-against-stored undecodable"),
    ("fp8-head", "transposed_block_scales_of_the_same_shape", "beyond-scheme"),
    ("fp8-head", "nan_scale", "non-finite"),
    ("fp8-head", "negative_scale", "negative-scale"),
    ("gptq-int4", "gptq_scale_off_by_two", "beyond-scheme error-outlier"),
    ("gptq-int4", "gptq_other_zero_point", "zero-point"),
    ("gptq-int4", "swapped_experts", "beyond-scheme error-outlier"),
    ("gptq-int4", "head_declared_as_gptq", "declared-against-stored"),
    ("gptq-int4", "gptq_head", "declared-against-stored"),
    ("gptq-int4", "malformed_rule", "quantization-not-read"),
    ("main", "no_tensors", "empty-file"),
    ("main", "empty_configuration", "empty-file"),
    ("main", "header_in_utf16", "unreadable-file"),
    ("main", "metadata_that_is_no_text", "unreadable-file"),
    ("main", "tensor_twice_in_the_index", "unreadable-file"),
    ("nvfp4-modelopt", "other_algorithm_in_the_own_file", "declared-twice"),
    ("main", "other_compute_dtype", "computation-differs"),
    ("main", "flat_configuration_of_a_nested_model", "architecture"),
    ("fp8-head", "erased_head", "beyond-scheme"),
    ("main", "twice_as_coarse", "beyond-scheme"),
    ("main", "four_times_as_coarse", "beyond-scheme"),
    ("main", "hundred_times_as_coarse", "beyond-scheme"),
    ("main", "one_halved_row", "beyond-scheme"),
    ("main", "eight_halved_rows", "beyond-scheme"),
    ("main", "all_rows_halved", "beyond-scheme"),
    ("gptq-int4", "one_halved_gptq_row", "beyond-scheme"),
    ("gptq-int4", "eight_halved_gptq_rows", "beyond-scheme"),
    ("gptq-int4", "four_dead_gptq_rows", "beyond-scheme"),
    ("gptq-int4", "doubled_gptq_groups", "beyond-scheme"),
    ("gptq-int4", "gptq_row_of_noise", "beyond-scheme"),
    ("main", "no_input_scales", "activation-scale"),
    ("main", "two_input_scales", "activation-scale"),
    ("main", "tiny_input_scales", "activation-scale"),
    ("main", "one_input_scale_far_off", "activation-scale"),
    ("main", "inputs_declared_unquantized", "activation-scale"),
    ("main", "negative_key_scale", "kv-cache-scale"),
    ("main", "zero_key_scale", "kv-cache-scale"),
    ("main", "huge_key_scale", "kv-cache-scale"),
    ("main", "key_scales_for_other_heads", "kv-cache-scale"),
    ("main", "key_scale_of_linear_attention", "kv-cache-scale"),
    ("main", "unknown_kv_cache", "kv-cache"),
    ("main", "global_scale_of_its_own", "fused-global-scales"),
]
"""Branch, damage, and every blocking rule that names what was damaged."""


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
    return int(done.return_value), done.output


@pytest.mark.parametrize(("branch", "name", "rules"), DAMAGES, ids=[f"{branch}-{name}" for branch, name, _ in DAMAGES])
def test_damage_is_named_and_blocks(
    branch: str, name: str, rules: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(build(branch, SANDBOX, tmp_path / "built"), folder)
    kinds = (damage, damaged_tensors, damaged_scales, contradictions)
    subject = next(getattr(kind, name) for kind in kinds if hasattr(kind, name))(folder)
    exit_code, output = command(str(folder), "--json", state=tmp_path / "state", monkeypatch=monkeypatch)
    assert exit_code == 1
    blocking = [found for found in json.loads(output)["findings"] if found["severity"] == "blocking"]
    assert sorted({found["rule"] for found in blocking if found["subject"] == subject}) == rules.split()


@pytest.mark.parametrize(
    "branch", ["bf16", "main", "fp8-head", "fp8-head-embed", "w4a16", "gptq-int4", "nvfp4-modelopt", "int2-experts"]
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
    shutil.copytree(SANDBOX / "main", folder)
    exit_code, output = command(str(folder), "--against", "fp8-head", state=tmp_path, monkeypatch=monkeypatch)
    assert exit_code == 0
    assert "[bold]copy" in output.replace("\n", "")
    assert "lm_head.weight: BF16" in output


HOSTILE = "model.x\n::error file=a::passed\x1b[31m\u202e.weight"


def test_what_a_checkpoint_calls_its_tensors_moves_no_cursor_and_is_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipeline's log a line that begins with `::` is a command to its runner."""
    folder = tmp_path / "copy"
    shutil.copytree(SANDBOX / "main", folder)
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
        shutil.copytree(SANDBOX / "main", folder)
        getattr(damage, name)(folder)
        messages = [finding.message for finding in inspected(folder).blocking]
        assert len(messages) == len(words)
        for message, word in zip(messages, words, strict=True):
            assert word in message
            assert "tensor 'model.layers." in message


def test_only_the_head_differs_between_main_and_fp8_head() -> None:
    against = inspected(SANDBOX / "fp8-head", against=SANDBOX / "main").against
    assert against is not None
    assert set(against.differences) == {"lm_head.weight", "lm_head.weight_scale"}
    assert set(against.different) == {"lm_head"}
    assert against.identical["routed experts"] == 432
    assert "lm_head" not in against.identical


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


def test_what_is_left_out_is_compared_with_the_references_and_shown_where_no_card_ships_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either layout's names; the multi-token head, which the branch alone has, and a zero whose sign differs."""
    reference, folder, zero = tmp_path / "reference", tmp_path / "copy", torch.zeros(3)
    shutil.copytree(SANDBOX / "bf16", reference)
    shutil.copytree(SANDBOX / "main", folder)
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


def test_what_is_excepted_by_name_does_not_block(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(SANDBOX / "main", folder)
    damaged_tensors.expert_left_out(folder)
    changed = damaged_tensors.other_unquantized_weight(folder)
    assert len(inspected(folder).blocking) == 4
    assert not inspected(folder, excepted=(changed, f"{damage.EXPERT}.*")).blocking


def test_a_value_left_out_is_the_default_it_stands_for(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(SANDBOX / "main", folder)
    damage.edit_json(folder, "config.json", lambda config: config.pop("rms_norm_eps"))
    assert not inspected(folder).blocking


def test_entries_that_transformers_does_not_know_do_not_block(tmp_path: Path) -> None:
    """Published configurations hold them, and producers drop them: told, and no more. One that it knows blocks."""
    folder = tmp_path / "copy"
    shutil.copytree(SANDBOX / "main", folder)
    entries = {"mamba_ssm_dtype": "float32", "output_gate_type": "swish"}
    damage.edit_json(folder, "config.json", lambda config: config.update(entries))
    inspection = inspected(folder)
    assert not inspection.blocking
    told = [finding.message for finding in inspection.findings if finding.rule == "computation-differs"]
    assert [message.split()[0] for message in told] == sorted(entries)
    damage.edit_json(folder, "config.json", lambda config: config.update(attention_bias=True))
    assert [finding.message.split()[0] for finding in inspected(folder).blocking] == ["attention_bias"]


READ_OTHERWISE: list[tuple[dict[str, Any], str]] = [
    ({"norm_topk_prob": False}, "engines-read-otherwise"),
    ({"attn_output_gate": False}, "engines-read-otherwise"),
    ({"mlp_only_layers": [0]}, "engines-read-otherwise"),
    ({"decoder_sparse_step": 2}, "engines-read-otherwise"),
    ({"rope_theta": 1e6}, "rope-contradicts"),
    ({"rope_scaling": {"rope_type": "default", "rope_theta": 5.0}}, "rope-contradicts"),
    ({"eos_token_id": 5}, "ends-contradict"),
]
MEASURED = {"norm_topk_prob": True, "attn_output_gate": True, "mlp_only_layers": [], "decoder_sparse_step": 1}


@pytest.mark.parametrize(("entries", "rule"), READ_OTHERWISE)
def test_an_entry_by_which_an_engine_serves_another_model_blocks(
    entries: dict[str, Any], rule: str, tmp_path: Path
) -> None:
    """transformers gives bit-equal logits with most of them, so nothing that is measured here can tell."""
    folder = tmp_path / "copy"
    shutil.copytree(SANDBOX / "main", folder)
    damage.edit_json(folder, "config.json", lambda config: config.update(MEASURED | {"rope_theta": 10000.0}))
    assert not inspected(folder).blocking
    damage.edit_json(folder, "config.json", lambda config: config.update(entries))
    assert {finding.rule for finding in inspected(folder).blocking} - {"computation-differs"} == {rule}
    assert rule in {finding.rule for finding in inspect_checkpoint(folder).blocking}, "whatever the reference says"


def test_code_that_comes_with_a_checkpoint_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(SANDBOX / "main", folder)
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
    shutil.copytree(SANDBOX / "main", folder)
    damage.truncated(folder)
    assert set(inspected(folder).measured) == {Section.INTEGRITY, Section.CONFIGURATION}
    assert Section.BOUNDS not in inspect_checkpoint(SANDBOX / "main").measured
    other_sizes = inspect_checkpoint(SANDBOX / "main", bf16_folder)
    assert other_sizes.blocking
    assert set(other_sizes.measured) == {*OF_ITSELF, Section.CONFIGURATION}


@pytest.mark.parametrize("text", ["{", "[]", '{"text_config": 3}', '{"layer_types": 3, "num_hidden_layers": []}'])
def test_a_configuration_of_any_kind_is_reported_and_never_raised(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(SANDBOX / "main", folder)
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
