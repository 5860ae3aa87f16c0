"""Options of engines are written once, and every command that opens an engine has them."""

import pytest

from q36eval.engines import EngineOptions
from q36eval.engines.base import ENGINE_ARG
from q36eval.errors import UsageError
from tests.commands import command_tree

OPENING = ("gate", "kl", "evals", "canaries", "attribute", "reference capture")


COMMANDS = command_tree()


@pytest.mark.parametrize("name", OPENING)
def test_every_option_of_an_engine_is_on_every_command_that_opens_one(name: str) -> None:
    of_reference = name == "reference capture"
    described = EngineOptions.described().values()
    flags = {each.flag for each in described if each.flag and not (of_reference and each.of_branch)}
    assert flags <= {each.opts[0] for each in COMMANDS[f"q36eval {name}"].params if each.param_type_name == "option"}
    with COMMANDS[f"q36eval {name}"].make_context(name, [], resilient_parsing=True) as context:
        text = COMMANDS[f"q36eval {name}"].get_help(context)
    assert all(f"{each.name}=" in text for each in described if each.flag is None)


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["weights_only=true"], "emulate_activations", False),
        (["batch-size=3"], "batch_rows", 3),
        (["seed=1", "kv_scales=stored", "a=b=c"], "engine_arguments", ("seed=1", "a=b=c")),
    ],
)
def test_a_name_that_is_ours_sets_its_field_and_others_pass(arguments: list[str], field: str, value: object) -> None:
    assert getattr(EngineOptions.read({}, arguments), field) == value


@pytest.mark.parametrize(
    "arguments",
    [
        ["weights_only"],
        ["=1"],
        ["weights_only=yes"],
        ["batch_size=0"],
        ["placement=attic"],
        ["kv_scales=both"],
        ["ray=auto", "ray=auto"],
        ["device=cuda"],
    ],
)
def test_an_argument_that_cannot_be_is_refused_by_name(arguments: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        EngineOptions.read({}, arguments)
    assert ENGINE_ARG in str(refused.value) or "not '" in str(refused.value)
