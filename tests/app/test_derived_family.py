"""A family derived from its reference: its facts, what a declared one with the same base lends it, hostile files."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.derived_family import CONTEXT_LENGTH, DerivedFamily, context_length, derive_family, undeclared
from q36eval.config import Paths
from q36eval.config.family import ChatTemplate, Family
from q36eval.measurement_facts import NOT_JUDGED, recorded_not_judged
from q36eval.records import ProbeName
from q36eval.reports.story import notes
from q36eval.run.probe_set import Limits, build_canaries, build_probes, published_facts, unsuited_probes
from q36eval.run.request import Request, Target
from tests.app.judged_runs import judge_run, open_history
from tests.q36eval.chat import templates
from tests.q36eval.chat.templates import templated

PATHS = Paths.default()
LLAMA = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 8192}
QWEN = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": {"max_position_embeddings": 262144}}


def _derived(folder: Path, config: Any, template: str = templates.DROPS_TOOLS, **more: Any) -> DerivedFamily:
    templated(folder, template)
    (folder / "config.json").write_text(json.dumps(config))
    return derive_family(folder, PATHS, **more)


def _yarn(key: str, **more: Any) -> dict[str, Any]:
    return {"max_position_embeddings": 32768, key: {"type": "yarn", "factor": 4.0} | more}


@pytest.mark.parametrize(
    ("settings", "length"),
    [
        ({"max_position_embeddings": 8192}, 8192),
        ({"n_positions": 1024}, 1024),
        ({"max_seq_len": 2048}, 2048),
        (_yarn("rope_scaling", original_max_position_embeddings=32768), 131072),
        (_yarn("rope_parameters"), 131072),
        ({**_yarn("rope_scaling", original_max_position_embeddings=32768), "max_position_embeddings": 131072}, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        (_yarn("rope_scaling", factor="4"), 32768),
        (_yarn("rope_scaling", factor=float("nan")), 32768),
        (_yarn("rope_scaling", factor=1e300), 32768),
        ({"max_position_embeddings": "8192"}, CONTEXT_LENGTH),
        ({"max_position_embeddings": True, "n_positions": -1, "rope_scaling": []}, CONTEXT_LENGTH),
        ({"max_position_embeddings": 10**30}, CONTEXT_LENGTH),
    ],
)
def test_the_context_is_that_of_the_positions_with_yarn(settings: dict[str, Any], length: int, tmp_path: Path) -> None:
    assert context_length(settings, tmp_path) == length


def test_without_positions_the_context_is_the_tokenizers(tmp_path: Path) -> None:
    for limit, length in ((2048, 2048), (10**30, CONTEXT_LENGTH), ("many", CONTEXT_LENGTH)):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": limit}))
        assert context_length({}, tmp_path) == length


def test_a_family_is_what_its_reference_is(tmp_path: Path) -> None:
    family = _derived(tmp_path / "mine", LLAMA, templates.LLAMA)
    assert (family.name, family.base_model, family.architectures) == ("mine", "mine", ("LlamaForCausalLM",))
    assert (family.tool_format, family.suite, family.policy) == ("llama_json", "standard", "standard")
    assert family.branch(family.reference).source.path == str(tmp_path / "mine")
    hub = derive_family(tmp_path / "mine", PATHS, repository="meta-llama/Llama-3.1-8B")
    assert (hub.name, hub.base_model) == ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B")
    shown = list(family.lines())
    assert len(shown) == 2
    assert all(word in " ".join(shown) for word in (str(tmp_path / "mine"), "LlamaForCausalLM", "8,192", "llama_json"))


def test_a_declared_family_with_the_same_base_lends_skills_and_budgets(tmp_path: Path) -> None:
    declared = Family.load(PATHS.families / "qwen3.6-35b-a3b.yaml")
    loaded_from = QWEN | {"_name_or_path": declared.base_model}
    for config, repository in ((QWEN, declared.base_model), (loaded_from, None), (loaded_from, "me/finetune")):
        family = _derived(tmp_path, config, templates.HERMES, repository=repository)
        assert (family.skills, family.answers) == (declared.skills, declared.answers)
        assert (family.same_base, family.tool_format) == (declared.name, "hermes"), "the template is the reference's"
    short = loaded_from | {"text_config": {"max_position_embeddings": 4096}}
    assert (_derived(tmp_path, short).skills, _derived(tmp_path, short).answers.largest) == (declared.skills, 0)
    for other in (QWEN, LLAMA | {"_name_or_path": declared.base_model}):
        family = _derived(tmp_path, other)
        assert (family.skills, family.same_base) == ((), "")


@pytest.mark.parametrize("config", [[], None, {"architectures": "x", "text_config": 7}, {"architectures": [None, {}]}])
def test_a_configuration_that_says_nothing_is_left_to_inspection(config: Any, tmp_path: Path) -> None:
    family = _derived(tmp_path / "mine", config)
    assert (family.name, family.architectures, family.context_length) == ("mine", (), CONTEXT_LENGTH)
    assert len(list(derive_family(tmp_path / "absent", PATHS).lines())) == 2


def _request(family: DerivedFamily) -> Request:
    target = Target("b", Path("b"))
    return Request(family, target, target, "quick", None, probes=(ProbeName.CANARIES,))


def test_what_is_not_judged_is_printed_kept_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    family = _derived(tmp_path, LLAMA)
    probe = build_canaries("quick", Limits(family=family))
    (sentence,) = probe.not_judged
    assert "tool-call" in sentence
    assert sentence in capsys.readouterr().err
    assert not any(spec.id.startswith("tool-") for spec in probe.specs)
    facts = published_facts(_request(family), [probe])
    assert recorded_not_judged(facts) == (sentence,)
    assert recorded_not_judged({NOT_JUDGED: 7}) == recorded_not_judged({}) == ()
    run = judge_run(open_history(tmp_path / "history"), 0, date(2026, 3, 2))
    assert sentence in notes(run.report, run.model_copy(update={"provenance": run.provenance | facts}))
    assert unsuited_probes(_request(family)) == []


def test_without_a_chat_template_no_canary_is_asked() -> None:
    lacking = ChatTemplate(present=False, trouble="it never ends")
    family = undeclared("plain", "plain", "plain", template=lacking, tool_format=None)
    assert build_probes([ProbeName.CANARIES], "quick", PATHS, lambda: pytest.fail("no texts"), Limits(family)) == []
    (failure,) = unsuited_probes(_request(family))
    assert (failure.probe, failure.kind) == (ProbeName.CANARIES, "unsuited")
    (kept,) = recorded_not_judged(published_facts(_request(family), []))
    assert "it never ends" in failure.reason
    assert failure.reason in kept
