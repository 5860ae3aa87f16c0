"""Every damage of the table is found, named and blocks; every undamaged branch is clean."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from typer.testing import CliRunner

from q36eval.app import sandbox
from q36eval.app.cli.inspect import inspect
from q36eval.checkpoints import checkpoint_sha256
from q36eval.checkpoints.inspection import Finding, Inspection, Promise, Section, Severity, inspect_checkpoint
from q36eval.checkpoints.inspection.examination import not_judged
from q36eval.checkpoints.inspection.extra_modules import SHIPPED
from q36eval.checkpoints.inspection.findings import OF_ITSELF
from q36eval.checkpoints.loader import load_model
from tests.branches import folder_of
from tests.q36eval.checkpoints.architectures import NAMES, quantize, saved

from . import damages, tiny
from .conftest import Copy, Whole
from .damage import SANDBOX, Damage, Tensors, config, edit_json, edit_tensors, inspected, one, truncated
from .damages import CASES, LINEAR, MEASURED, MINE, UNSEEN, Case, nested, without
from .tiny import write_texts

SHIPS = tuple(Promise(tensors=part, stored="unquantized", source="the card") for part in SHIPPED.values())


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


def promised(name: str) -> tuple[Promise, ...]:
    return SHIPS if name == "tiny-nvfp4" else ()


@pytest.mark.sized
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.id, marks=[] if case.checkpoint.startswith("tiny") else [pytest.mark.long])
        for case in CASES
    ],
)
def test_damage_is_named_and_blocks(case: Case, copy_of: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, reference = copy_of(case.checkpoint, case.damage)
    if reference == SANDBOX / "bf16":
        exit_code, output = command(str(folder), "--json", state=tmp_path / "state", monkeypatch=monkeypatch)
        assert exit_code == 1
        findings = [Finding.model_validate(found) for found in json.loads(output)["findings"]]
    else:
        found = inspect_checkpoint(folder, reference, weights_workers=1, promises=promised(case.checkpoint))
        findings = list(found.findings)
    blocking = [one for one in findings if one.severity is Severity.BLOCKING]
    assert not [one for one in blocking if one.message.startswith(f"{folder}/{one.subject}: ")], "named once"
    needed = {*case.rules.split()}
    if case.at_least:
        assert needed <= {one.rule for one in blocking if one.subject.startswith(case.subject)}
    else:
        assert needed == {one.rule for one in blocking if one.subject == case.subject}


@pytest.mark.parametrize(("what", "damage", "rules"), damages.OF_ITSELF)
def test_entries_that_contradict_each_other_block_without_a_reference(
    what: str, damage: Damage, rules: str, copy_of: Copy
) -> None:
    folder, _ = copy_of("tiny-nvfp4", damage)
    assert {*rules.split()} - {damages.COMPUTED} <= {one.rule for one in inspect_checkpoint(folder).blocking}


HARMLESS: list[Damage] = [
    config(**MEASURED),
    nested(),
    config(dtype="float16"),  # as exporters of INT4 declare
    without("rms_norm_eps"),
    one(f"{LINEAR}.A_log", torch.Tensor.float),  # the same numbers in another dtype
    config(mamba_ssm_dtype="float32", output_gate_type="swish"),  # published, and unknown to transformers
]


@pytest.mark.parametrize("change", HARMLESS)
def test_entries_that_change_nothing_do_not_block(change: Damage, copy_of: Copy) -> None:
    folder, reference = copy_of("tiny-nvfp4", change)
    found = inspect_checkpoint(folder, reference, weights_workers=1)
    assert not found.blocking
    told = [one.message.split()[0] for one in found.findings if one.rule == "computation-differs"]
    assert told == (["mamba_ssm_dtype", "output_gate_type"] if change is HARMLESS[-1] else [])


def test_a_group_of_zeros_has_the_least_exponent_by_right(copy_of: Copy) -> None:
    def empty(tensors: Tensors) -> None:
        tensors[f"{MINE}.up_proj.weight"].view(torch.uint8)[5] = 0
        tensors[f"{MINE}.up_proj.weight_scale"][5] = 0

    folder, _ = copy_of("ct-mxfp8", lambda folder: edit_tensors(folder, empty))
    assert not inspect_checkpoint(folder).blocking_in(Section.INTEGRITY)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({case.checkpoint for case in CASES} | {*sandbox.NAMES}))
def test_no_false_alarm_on_any_branch_nor_on_what_was_damaged(name: str, whole: Whole) -> None:
    branch, reference = (folder_of(name), SANDBOX / "bf16") if name in sandbox.NAMES else whole(name)
    found = inspect_checkpoint(branch, reference, weights_workers=1, promises=promised(name))
    assert not found.blocking
    assert set(found.measured) == set(Section)
    assert found.unbounded_weights == 0
    assert max([row.worst_bound_usage or 0.0 for row in found.errors], default=0.0) < 0.9, "what rounding can cost"


@pytest.mark.long
@pytest.mark.parametrize(("what", "checkpoint", "damage"), UNSEEN)
def test_what_files_do_not_show_is_not_called_damage(
    what: str, checkpoint: str, damage: Damage, whole: Whole, copy_of: Copy
) -> None:
    """Damage to inputs and caches is what `tests/kl/test_attribution.py` measures."""
    folder, reference = copy_of(checkpoint, damage)
    assert checkpoint_sha256(folder) != checkpoint_sha256(whole(checkpoint)[0])
    assert not inspect_checkpoint(folder, reference, weights_workers=1).blocking


def test_cases_have_ids_of_their_own_and_cover_every_format() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    assert {case.checkpoint for case in CASES} >= {*tiny.MANIFEST}, "every format is damaged"


def test_an_undamaged_copy_is_clean_and_shown_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "[bold]copy"
    shutil.copytree(folder_of("main"), folder)
    exit_code, output = command(str(folder), state=tmp_path, monkeypatch=monkeypatch)
    assert exit_code == 0
    assert "[bold]copy" in output.replace("\n", "")


HOSTILE = "model.x\n::error file=a::passed\x1b[31m\u202e.weight"


@pytest.mark.long
def test_what_a_checkpoint_calls_its_tensors_moves_no_cursor_and_is_no_command(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipeline's log a line that begins with `::` is a command to its runner."""
    edit_tensors(folder, lambda tensors: tensors.update({HOSTILE: torch.zeros(2)}))
    edit_json(folder, "config.json", lambda config: config.update(architectures=["Own\n::error::passed\x1b[2J"]))
    _, output = command(str(folder), state=tmp_path / "state", monkeypatch=monkeypatch)
    assert "unexpected-tensor" in output
    assert "::passed" not in output.replace(":: ", "")
    assert not [line for line in output.splitlines() if line.startswith("::")]
    assert not {"\x1b", "\u202e"} & set(output)


def test_code_that_comes_with_a_checkpoint_is_told(folder: Path) -> None:
    (folder / "modeling_own.py").write_text("raise SystemExit")
    edit_json(folder, "tokenizer_config.json", lambda own: own.update(auto_map={"AutoTokenizer": ["own.T", None]}))
    inspection = inspected(folder)
    told = next(finding for finding in inspection.findings if finding.rule == "own-code")
    assert told.severity is Severity.ADVISORY
    assert told.subject == "modeling_own.py"


def test_what_is_not_a_number_on_both_sides_is_equal(folder: Path) -> None:
    edit_json(folder, "generation_config.json", lambda own: own.update(temperature=float("nan")))
    assert not [one.message for one in inspected(folder, folder).findings if one.rule == "generation-config-differs"]


def test_what_cannot_be_judged_is_not_measured(folder: Path, bf16_folder: Path) -> None:
    truncated(folder)
    assert set(inspected(folder).measured) == {Section.INTEGRITY, Section.CONFIGURATION}
    assert Section.WEIGHTS not in inspect_checkpoint(folder_of("main")).measured
    other_sizes = inspect_checkpoint(folder_of("main"), bf16_folder)
    assert other_sizes.blocking
    assert set(other_sizes.measured) == {*OF_ITSELF, Section.CONFIGURATION}


@pytest.mark.parametrize("text", ["{", "[]", '{"text_config": 3}', '{"layer_types": 3, "num_hidden_layers": []}'])
def test_a_configuration_of_any_kind_is_reported_and_never_raised(text: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    (folder / "generation_config.json").write_text("[]")
    (folder / "tokenizer.json").write_text('{"model": {"vocab": 3}}')
    assert inspected(folder).blocking


def test_a_section_left_unjudged_without_a_reason_is_no_pass() -> None:
    judged = [*OF_ITSELF, Section.CONFIGURATION]
    assert [finding.rule for finding in not_judged(judged, True, [])] == ["not-judged"]
    assert not not_judged(judged, False, [])
    assert not not_judged(list(Section), True, [])


# -- no alarm on an untouched checkpoint, in BF16 and as llm-compressor writes FP8, nor on what is declared


def written(name: str, folder: Path) -> Path:
    """The model with a tokenizer of bytes and a chat template."""
    saved(name, folder)
    tokenizer = Tokenizer(BPE({byte: number for number, byte in enumerate(sorted(ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    return folder


def quantized(source: Path, folder: Path) -> Path:
    """FP8 by rows of every linear module but the head, and of its inputs; experts stored as one stay as they are."""
    shutil.copytree(source, folder)
    quantize(folder, inputs=True)
    return folder


def rules(inspection: Inspection) -> set[tuple[str, str]]:
    return {(finding.severity.value, finding.rule) for finding in inspection.findings}


def check_classes(name: str, inspection: Inspection) -> None:
    """No class is unknown, and none is there that the architecture does not have."""
    classes = {row.tensor_class for row in inspection.coverage}
    assert "other" not in classes
    assert ("linear attention" in classes) == name.startswith(("qwen3_5", "qwen3_next"))
    has_experts = "moe" in name or name in {"deepseek_v2", "deepseek_v3", "gpt_oss", "llama4_text", "minimax_m2"}
    has_experts |= name in {"mixtral", "qwen3_next"}
    assert ("routed experts" in classes) == has_experts


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_an_untouched_checkpoint_raises_no_alarm(name: str, tmp_path: Path) -> None:
    reference = written(name, tmp_path / "reference")
    inspection = inspect_checkpoint(reference, reference, weights_workers=1)
    assert rules(inspection) == {("advisory", "nothing-quantized")}
    check_classes(name, inspection)
    inspection = inspect_checkpoint(quantized(reference, tmp_path / "fp8"), reference, weights_workers=1)
    if name == "gpt2":  # it has no linear modules, so the recipe quantized nothing
        assert rules(inspection) == {("blocking", "declared-scheme-absent")}
        return
    found = rules(inspection)
    if name.startswith(("qwen3_5", "qwen3_next")):
        assert found <= {("advisory", "usually-unquantized"), ("advisory", "router-gates-quantized")}
    else:
        assert found == set()
    assert sum(inspection.schemes.values()) > 0
    check_classes(name, inspection)


def test_a_checkpoint_without_a_template_is_as_whole_as_its_reference(tmp_path: Path) -> None:
    reference = written("llama", tmp_path / "reference")
    (reference / "chat_template.jinja").unlink()
    wanted = {("advisory", "nothing-quantized"), ("advisory", "chat-template-missing")}
    assert rules(inspect_checkpoint(reference, reference)) == wanted


@pytest.mark.parametrize(("settings", "blocks"), [({"sliding_window": None}, False), ({}, True)])
def test_a_mistral_with_a_window_is_no_llama(settings: dict[str, None], blocks: bool, tmp_path: Path) -> None:
    branch = written("llama", tmp_path / "branch")
    reference = Path(shutil.copytree(branch, tmp_path / "reference"))
    config(model_type="mistral", architectures=["MistralForCausalLM"], **settings)(reference)
    assert (("blocking", "computation-differs") in rules(inspect_checkpoint(branch, reference))) is blocks


@pytest.mark.parametrize(
    ("factor", "tied", "blocking"),
    [(1.0, True, []), (1.0, False, []), (2.0, True, ["tied-head"]), (2.0, False, ["computation-differs"])],
)
def test_a_stored_head_may_equal_the_embeddings(factor: float, tied: bool, blocking: list[str], tmp_path: Path) -> None:
    reference = written("llama-tied", tmp_path / "reference")
    branch = Path(shutil.copytree(reference, tmp_path / "branch"))
    config(tie_word_embeddings=tied)(branch)
    edit_tensors(branch, lambda own: own.update({"lm_head.weight": factor * own["model.embed_tokens.weight"]}))
    found = rules(inspect_checkpoint(branch, reference, weights_workers=1))
    assert found == {("advisory", "nothing-quantized"), *(("blocking", rule) for rule in blocking)}


OLDER: dict[str, Any] = {
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
NEWER: dict[str, Any] = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
}


def test_two_ways_of_writing_one_rotary_embedding_are_no_difference(tmp_path: Path) -> None:
    """Gemma 3's, as older and newer versions of transformers write it."""
    older, newer = saved("gemma3_text", tmp_path / "older"), saved("gemma3_text", tmp_path / "newer")

    def differing(changes: dict[str, Any]) -> list[str]:
        for folder, rope in ((older, OLDER | changes), (newer, NEWER)):
            edit_json(folder, "config.json", lambda own: [own.pop(key) for key in [*own] if key.startswith("rope")])
            config(**rope)(folder)
        both = (*inspect_checkpoint(newer, older).findings, *inspect_checkpoint(older, newer).findings)
        return [finding.message for finding in both if finding.rule == "computation-differs"]

    assert differing({}) == []
    assert [message.partition(" ")[0] for message in differing({"rope_local_base_freq": 50_000.0})] == [
        "sliding_attention",
        "sliding_attention",
    ]


KEPT = (0, 2, 3)


def pruned(reference: Path, folder: Path, changes: Tensors) -> Path:
    """The reference without its expert 1, the others numbered again; `changes` replace tensors."""
    shutil.copytree(reference, folder)

    def renumber(tensors: Tensors) -> None:
        stored = tensors.copy()
        tensors.clear()
        for name, value in stored.items():
            before, expert, after = name.partition(".experts.")
            if not expert:
                tensors[name] = value[list(KEPT)] if name.endswith(".mlp.gate.weight") else value
            elif int(after[0]) in KEPT:
                tensors[f"{before}.experts.{KEPT.index(int(after[0]))}{after[1:]}"] = value
        tensors |= changes

    def recount(document: dict[str, Any]) -> None:
        document[next(name for name in ("num_local_experts", "num_experts") if name in document)] = len(KEPT)

    edit_tensors(folder, renumber)
    edit_json(folder, "config.json", recount)
    return folder


def blocking(inspection: Inspection) -> list[tuple[str, str]]:
    return [(one.rule, one.subject) for one in inspection.blocking]


def test_a_branch_without_some_experts_is_compared_where_there_is_something_to_compare(tmp_path: Path) -> None:
    reference = saved("qwen3_moe", tmp_path / "reference")
    write_texts(reference)
    branch = pruned(reference, tmp_path / "branch", {})
    assert load_model(branch).model.config.num_experts == 3
    inspection = inspect_checkpoint(branch, reference)
    assert blocking(inspection) == blocking(inspect_checkpoint(reference, reference))
    (listed,) = (finding for finding in inspection.findings if finding.rule == "experts-pruned")
    assert "3 of the reference's 4 experts" in listed.message
    assert "20 tensors" in listed.message  # two layers of three experts of three projections, and a gate each
    assert inspection.compared_weights == len(load_file(branch / "model.safetensors")) - 20
    norm = "model.layers.1.input_layernorm.weight"
    damaged = pruned(reference, tmp_path / "damaged", {norm: load_file(reference / "model.safetensors")[norm] * 2})
    assert ("unquantized-differs", norm) in blocking(inspect_checkpoint(damaged, reference))
