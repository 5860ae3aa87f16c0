"""What workers cannot have is refused in a sentence, before anything is opened and without Ray."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from q36eval.engines import EngineOptions, check_options, open_engine
from q36eval.engines import worker_places as places
from q36eval.engines.worker_places import Place, gpus_of
from q36eval.errors import UsageError
from tests.raising import raises

SANDBOX = Path(__file__).parents[3] / "data" / "sandbox" / "bf16"


@pytest.fixture
def with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "find_spec", lambda name: find_spec("json"))


@pytest.mark.usefixtures("with_ray")
@pytest.mark.parametrize(
    ("code", "value", "options"),
    [
        ("option-missing", "", EngineOptions(ray="auto")),
        ("ray-address-invalid", "ray://head:10001", EngineOptions(workers=2, ray="ray://head:10001")),
        ("device-conflict", "cuda:1", EngineOptions(workers=2, device="cuda:1")),
        ("option-conflict", "", EngineOptions(workers=2, placement="layers")),
        ("option-unsupported", "--workers", EngineOptions(workers=2, kind="openai", base_url="http://127.0.0.1:1/v1")),
    ],
)
def test_what_workers_cannot_have(code: str, value: str, options: EngineOptions) -> None:
    for opens in (lambda: check_options(options), lambda: open_engine(options.of(SANDBOX))):
        with raises(UsageError, code, value):
            opens()


def test_what_workers_inherit_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the command's secrets, nothing that has all of them take one GPU, and its code where it is a checkout."""
    pools = pytest.importorskip("q36eval.engines.workers.pool")
    pytest.importorskip("ray")
    secrets = ["Q36EVAL_HISTORY", "Q36EVAL_WATCH_SLACK", "OPENAI_API_KEY", "HF_TOKEN", "RAY_AUTH_TOKEN"]
    inherited = dict.fromkeys([*secrets, "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"], "theirs")
    kept = pools.local_environment(inherited | {"PATH": "/bin", "PYTHONPATH": "mine"})
    assert "theirs" not in kept.values()
    assert kept["PATH"] == "/bin"
    assert kept["RAY_AUTH_MODE"] == "token"
    assert len(kept["RAY_AUTH_TOKEN"]) == 64
    assert kept["PYTHONPATH"] == f"{SANDBOX.parents[2]}{os.pathsep}mine"
    installed = tmp_path / "site-packages" / "q36eval" / "engines" / "workers" / "pool.py"
    monkeypatch.setattr(pools, "__file__", str(installed))
    assert pools.local_environment({"PYTHONPATH": "mine"})["PYTHONPATH"] == "mine"
    assert "PYTHONPATH" not in pools.local_environment({})


def test_without_ray_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "find_spec", lambda name: None)
    with raises(UsageError, "package-missing", 'pip install "q36eval[ray]"'):
        open_engine(EngineOptions(workers=2).of(SANDBOX))
    check_options(EngineOptions())


def test_a_worker_takes_the_gpus_that_its_engine_spreads_a_model_over() -> None:
    two = EngineOptions(workers=3, device="cuda", kind="vllm", engine_arguments=("tensor-parallel-size=2", "seed=4"))
    assert gpus_of(two) == 2
    assert str(Place.of(two)) == "3 workers on this machine, 2 GPUs each"
    assert str(Place.of(EngineOptions(workers=1, ray="a:1"))) == "1 worker on the Ray cluster a:1, one core each"
