"""Configurations read without compressed-tensors: never otherwise than it reads them, and without its import."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.utils.match import match_name

from q36eval.app.sandbox import build
from q36eval.checkpoints.groups import Arguments, read_groups
from q36eval.checkpoints.scheme import listed
from q36eval.checkpoints.schemes import _is_among

REPOSITORY = Path(__file__).parents[3]
FOLDERS = [*(REPOSITORY / "tests" / "assets" / "golden").glob("ct-*"), *(REPOSITORY / "data" / "sandbox").iterdir()]
CONFIGS = [
    config
    for file in sorted(folder / "config.json" for folder in FOLDERS)
    if file.is_file()
    for config in [json.loads(file.read_text()).get("quantization_config")]
    if config and config["quant_method"] == "compressed-tensors"
]
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "num_bits": (2, 4, 8, 16, True, "4"),
    "type": ("int", "float", "FLOAT"),
    "symmetric": (True, False, None),
    "strategy": ("tensor", "channel", "group", "block", "token", "tensor_group", None, "GROUP"),
    "group_size": (None, 16, 32, -1, 0, "16"),
    "block_structure": (None, [128, 128], [128], "128x128", [0, 128]),
    "dynamic": (False, True, "local"),
    "actorder": (None, "static", "group"),
}
"""In every combination; those of the keys below one at a time."""
ODD: dict[str, tuple[Any, ...]] = {
    "scale_dtype": ("torch.float8_e4m3fn", "torch.float33", 3),
    "zp_dtype": ("torch.int8", "int8"),
    "observer": ("minmax", 3),
    "observer_kwargs": ({"a": 1}, None, []),
    "surprise": (1,),
}


def config_of(group: dict[str, Any], **more: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "format": "pack-quantized", **group}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups, **more}


def assert_read_alike(config: dict[str, Any]) -> bool:
    """Whether it was read at all; what was, the library must accept, with the same values."""
    ours = read_groups(config)
    if ours is None:
        return False
    theirs = QuantizationConfig.model_validate(json.loads(json.dumps(config)))
    assert (ours.ignore, ours.format) == (theirs.ignore or [], theirs.format)
    assert ours.config_groups.keys() == theirs.config_groups.keys()
    for name, mine in ours.config_groups.items():
        other = theirs.config_groups[name]
        assert (mine.targets, mine.format) == (other.targets, other.format)
        for one, another in ((mine.weights, other.weights), (mine.input_activations, other.input_activations)):
            assert (one is None) == (another is None)
            for field in () if one is None else Arguments.__dataclass_fields__:
                theirs_as_text = getattr(another, field)
                if field == "scale_dtype" and theirs_as_text is not None:
                    theirs_as_text = str(theirs_as_text)
                assert getattr(one, field) == theirs_as_text, field
    return True


@pytest.mark.long
@pytest.mark.parametrize("where", ["weights", "input_activations"])
def test_every_combination_that_is_read_is_read_as_the_library_does(where: str) -> None:
    read = 0
    for values in itertools.product(*ARGUMENTS.values()):
        given = dict(zip(ARGUMENTS, values, strict=True))
        read += assert_read_alike(config_of({where: given}))
    # 5 grids, symmetric or not; 7 layouts of scales with 2 orders, or 13 of static and dynamic ones
    assert read == {"weights": 5 * 2 * 7 * 2, "input_activations": 5 * 2 * 13}[where]


def test_odd_entries_are_read_as_the_library_does() -> None:
    plain = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    for key, values in ODD.items():
        for value in values:
            assert_read_alike(config_of({"weights": plain | {key: value}}))
    for group in ({"targets": "Linear"}, {"targets": [3]}, {"format": None}, {"format": "dense"}, {"surprise": 1},
                  {"weights": []}, {"format": "mixed-precision"}, {"output_activations": plain}):  # fmt: skip
        assert not assert_read_alike(config_of({"weights": plain} | group))
    for more in ({"ignore": ""}, {"ignore": ["a", 3]}, {"quantization_status": None}, {"format": 3},
                 {"config_groups": {"W4A16": ["Linear"]}}, {"config_groups": []}, {"kv_cache_scheme": 3}):  # fmt: skip
        assert not assert_read_alike(config_of({"weights": plain}, **more))
    assert assert_read_alike(config_of({"weights": plain}, ignore=None, kv_cache_scheme={"strategy": "tensor"}))


@pytest.mark.parametrize("config", CONFIGS)
def test_what_the_producers_write_needs_no_library(config: dict[str, Any]) -> None:
    assert assert_read_alike(without_group_order(config))


def without_group_order(config: dict[str, Any]) -> dict[str, Any]:
    """As the resolver reads it: the library no longer knows the order that older releases of it wrote."""
    read: dict[str, Any] = json.loads(json.dumps(config).replace('"actorder": "group"', '"actorder": null'))
    return read


def test_names_match_as_in_the_library() -> None:
    for target in ("lm_head", "re:.*lm_head", "re:lm", "re:head", "re:", "Linear", "model.lm_head"):
        for name in ("lm_head", "model.lm_head", "Linear", ""):
            assert _is_among({name}, *listed([target])) == match_name(name, target)


@pytest.mark.long
def test_an_inspection_never_imports_transformers(tmp_path: Path) -> None:
    """That import takes longer than everything else of `q36eval inspect` together."""
    code = (
        "import sys; from pathlib import Path; from q36eval.checkpoints.inspection import inspect_checkpoint;"
        "inspected = inspect_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]));"
        "assert inspected.compared_weights and not inspected.blocking;"
        "print([name for name in ('transformers', 'compressed_tensors', 'lm_eval') if name in sys.modules])"
    )
    sandbox = REPOSITORY / "data" / "sandbox"
    for branch in ("fp8-head", "gptq-int4"):
        folders = (str(build(branch, sandbox, tmp_path)), str(sandbox / "bf16"))
        done = subprocess.run([sys.executable, "-c", code, *folders], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"
