"""Faults of serving engines: each names what must fail by it, is made as it says, and a real vLLM shows it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.serving_faults.__main__ import judge, row, starts
from benchmarks.serving_faults.faults import FAULTS, POLICY, Fault
from benchmarks.serving_faults.judging import POLICIES, Judged, Said
from benchmarks.serving_faults.plugin.q36eval_serving_faults import answers, loading
from benchmarks.serving_faults.plugin.q36eval_serving_faults import switch as read
from benchmarks.serving_faults.switch import PLUGIN, switch
from q36eval.engines.vllm.environment import PYTHON_VARIABLE
from q36eval.gate.policy_file import read_policy
from tests.profiles import LONG

BY_NAME = {fault.name: fault for fault in FAULTS}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_names_blocking_criteria_of_its_probe(fault: Fault) -> None:
    policy = read_policy(POLICIES / f"{POLICY[fault.probe]}.yaml")
    probe = {"endpoint": "kl", "apart": "served", "endpoint-apart": "served"}.get(fault.probe, fault.probe)
    blocking = {each.id for each in policy.criteria if each.probe == probe and each.tier == "blocking"}
    assert sum(map(bool, (fault.criteria, fault.refusal, fault.missed))) == 1
    assert set(fault.criteria) <= blocking


def test_every_fault_is_made_by_the_plugin_and_no_other_is() -> None:
    assert len(FAULTS) == len(BY_NAME)
    assert sum(not fault.missed for fault in FAULTS) >= 12
    source = "\n".join(path.read_text() for path in (PLUGIN / "q36eval_serving_faults").glob("*.py"))
    unmade = [name for name in BY_NAME if f'"{name}"' not in source]
    assert unmade == []
    assert set(loading.CHANGES) == {fault.name for fault in FAULTS if fault.at_start}


def test_faults_that_can_be_switched_share_a_start_between_two_looks_at_the_engine_without_one() -> None:
    (first, shown), *others = list(starts(FAULTS))
    assert first == ""
    assert (shown[0], shown[-1]) == (None, None)
    assert [name for name, _ in others] == [fault.name for fault in FAULTS if fault.at_start]
    assert sum(len(each) for _, each in starts(FAULTS)) == len(FAULTS) + 2


def test_a_fault_is_caught_by_its_own_criteria_alone_and_no_fault_by_none() -> None:
    fault = BY_NAME["rope-base"]
    failed = Said("FAIL", (Judged("kl", "FAIL", "0.3"), Judged("outputs-finite", "PASS", "0")))
    elsewhere = Said("FAIL", (Judged("kl", "PASS", "0"), Judged("outputs-finite", "FAIL", "3")))
    passed = Said("PASS", (Judged("kl", "PASS", "0"),))
    refused = Said("exit 4", sentence="The server does not answer.")
    assert [row(fault, said, 1.0)[1] for said in (failed, elsewhere, passed, refused)] == [True, False, False, False]
    assert [row(None, said, 1.0)[1] for said in (failed, elsewhere, passed, refused)] == [False, False, True, False]
    stale = BY_NAME["stale-model"]
    at_start = Said("exit 4", sentence=f"The states are {stale.refusal}.")
    assert [row(stale, said, 1.0)[1] for said in (at_start, refused, failed, passed)] == [True, False, False, False]
    assert "`kl`" in row(fault, failed, 1.0)[0]
    assert "does not answer" in row(fault, refused, 1.0)[0]


def test_vllm_finds_the_plugin_and_the_fault_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "from importlib.metadata import entry_points\n"
        "(found,) = entry_points(group='vllm.general_plugins', name='q36eval_serving_faults')\n"
        "print(found.load().__name__)"
    )
    with switch("rope-base") as switched:
        for python, variables in ((sys.executable, switched.variables), (switched.interpreter(sys.executable), {})):
            done = subprocess.run(
                [python, "-c", program], env=os.environ | variables, capture_output=True, text=True, check=True
            )
            assert done.stdout.strip() == "register"
        monkeypatch.setenv(read.VARIABLE, str(switched.file))
        assert read.active() == "rope-base"
        switched.show("kv-scales")
        assert read.active() == "kv-scales"
        switched.show("")
        assert read.active() == ""


def test_a_method_is_wrapped_once_by_each_fault() -> None:
    class Owner:
        def count(self) -> int:
            return 1

    def twice(original: Any, self: Any) -> Any:
        return 2 * original(self)

    def more(original: Any, self: Any) -> Any:
        return original(self) + 1

    for around in (twice, twice, more, more):
        read.wrapped(Owner, "count", around)
    assert Owner().count() == 3


def test_the_scale_of_gate_for_up_changes_nothing_but_up() -> None:
    names = [f"model.layers.0.mlp.experts.3.{part}_proj.weight" for part in ("gate", "up", "down")]
    gate, up, down = torch.tensor([[1.0, -8.0]]), torch.tensor([[2.0, 4.0]]), torch.tensor([[1.0]])
    changed = loading.first_scale_for_gate_and_up(dict(zip(names, (gate, up, down), strict=True)))
    assert torch.equal(changed[names[1]], up / loading.UP_OVER_GATE)
    assert torch.equal(changed[names[0]], gate)
    assert torch.equal(changed[names[2]], down)


def test_a_stale_model_differs_in_every_matrix_by_its_share_and_is_the_same_each_time() -> None:
    weights = {"a": torch.randn(64, 64, generator=torch.Generator().manual_seed(1)), "norm": torch.ones(64)}
    first, again = (loading.another_models({name: each.clone() for name, each in weights.items()}) for _ in range(2))
    assert torch.equal(first["a"], again["a"])
    assert torch.equal(first["norm"], weights["norm"])
    # 4,096 draws: their deviation is known to about one per cent
    assert float((first["a"] - weights["a"]).std()) == pytest.approx(loading.STALE * float(weights["a"].std()), rel=0.1)


def test_arguments_that_are_cut_stay_json_and_say_something_else() -> None:
    whole = '{"city": "Ústí nad Labem", "days": 3}'
    cut = json.loads(answers._cut(whole))
    assert cut["days"] == 3
    assert "Ústí nad Labem".startswith(cut["city"])
    assert cut != json.loads(whole)


def test_a_chunk_is_sent_twice_or_not_at_all_and_the_end_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [*(f"data: {n}\n\n" for n in range(1, 6)), "data: [DONE]\n\n"]

    async def original() -> AsyncIterator[str]:
        for event in events:
            yield event

    async def came() -> list[str]:
        return [event async for event in answers._streamed(original)]

    with switch() as switched:
        monkeypatch.setenv(read.VARIABLE, str(switched.file))
        assert asyncio.run(came()) == events
        switched.show("chunk-doubled")
        assert asyncio.run(came()) == [*events[:3], events[2], *events[3:]]
        switched.show("chunk-dropped")
        assert asyncio.run(came()) == [*events[:2], *events[3:]]


@pytest.mark.slow
@pytest.mark.long
def test_a_real_vllm_with_faults_is_failed_by_their_criteria_and_without_any_passes(tmp_path: Path) -> None:
    python = os.environ.get(PYTHON_VARIABLE)
    if not (LONG and python):
        pytest.skip("only `make test-long`, where Q36EVAL_VLLM_PYTHON names an environment with vLLM")
    shown = [None, BY_NAME["rope-base"], BY_NAME["output-gate"], BY_NAME["norm-offset"], None]
    with switch() as switched, judge("kl", Path(python), tmp_path, switched) as said:
        for fault in shown:
            switched.show("" if fault is None else fault.name)
            text, good = row(fault, said(fault), 0.0)
            assert good, text


@pytest.mark.slow
@pytest.mark.long
def test_a_real_vllm_with_other_weights_in_its_layers_is_not_what_is_decoded_here(tmp_path: Path) -> None:
    python = os.environ.get(PYTHON_VARIABLE)
    if not (LONG and python):
        pytest.skip("only `make test-long`, where Q36EVAL_VLLM_PYTHON names an environment with vLLM")
    for fault in (None, BY_NAME["stale-layers"]):
        with switch("" if fault is None else fault.name) as switched:
            switched.show("" if fault is None else fault.name)
            with judge("apart", Path(python), tmp_path, switched) as said:
                text, good = row(fault, said(fault), 0.0)
                assert good, text
