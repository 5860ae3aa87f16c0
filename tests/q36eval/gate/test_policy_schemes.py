"""Figures by scheme in policy files: inherited one by one, each change with a source of its own."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from q36eval.errors import UsageError
from q36eval.gate.policy_file import policy_problems, read_policy
from tests.raising import raises

BASE = {
    "name": "base",
    "criteria": [
        {
            "id": "kl",
            "probe": "kl",
            "metric": "kl_divergence",
            "margin": {
                "kind": "max_value",
                "value": 0.1,
                "source": "a ceiling",
                "schemes": [
                    {"scheme": "W4A16", "value": 0.014, "source": "a card"},
                    {"scheme": "NVFP4 + FP8_BLOCK", "value": 0.06, "source": "ours"},
                ],
            },
            "lanes": ["structured", "freeform"],
        }
    ],
}


def child(folder: Path, **margin: Any) -> Path:
    for name, document in (
        ("base", BASE),
        ("own", {"name": "own", "extends": "base.yaml", "criteria": [{"id": "kl", "margin": margin}]}),
    ):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return folder / "own.yaml"


def figures(file: Path) -> dict[str, float]:
    return {figure.scheme: figure.value for figure in read_policy(file).criteria[0].margin.schemes}


def test_a_figure_is_changed_by_its_scheme_and_the_others_stay(tmp_path: Path) -> None:
    changed = {"scheme": "FP8_BLOCK+NVFP4", "value": 0.05, "source": "measured"}
    new = {"scheme": "NVFP4", "value": 0.07, "source": "measured"}
    file = child(tmp_path, schemes=[changed, new])
    assert figures(file) == {"W4A16": 0.014, "FP8_BLOCK + NVFP4": 0.05, "NVFP4": 0.07}
    assert read_policy(file).criteria[0].margin.value == 0.1


def test_a_lower_ceiling_takes_the_place_of_figures_that_allow_more(tmp_path: Path) -> None:
    assert figures(child(tmp_path, value=0.03, source="review")) == {"W4A16": 0.014}
    assert figures(child(tmp_path, value=0.01, source="review")) == {}
    assert len(figures(child(tmp_path, kind="max_value", value=0.09, source="review"))) == 2


@pytest.mark.parametrize(
    ("margin", "named"),
    [
        (
            {"schemes": [{"scheme": "W4A16", "value": 0.02}]},
            ("criteria[0].margin.schemes[0]:", "'kl'", "W4A16 from 0.014 to 0.02"),
        ),
        ({"schemes": [{"scheme": "W4A16", "value": 0.02, "source": "a card"}]}, ("source",)),
        (
            {"schemes": [{"scheme": "NVFP4+FP8_BLOCK", "value": 0.01, "source": "ours"}]},
            ("FP8_BLOCK + NVFP4 from 0.06 to 0.01",),
        ),
        ({"schemes": [{"scheme": "NVFP4", "source": "x"}]}, ("'criteria[0].margin.schemes[2].value'",)),
        ({"schemes": [{"scheme": "nvfp4", "value": 0.05, "source": "x"}]}, ("'nvfp4'",)),
        ({"schemes": [{"scheme": "NVFP4", "value": 0.2, "source": "x"}]}, ("ceiling 0.1",)),
        ({"schemes": [{"scheme": "NVFP4", "lue": 0.2}]}, ("scheme, value, source",)),
        (
            {"schemes": [{"scheme": "W4A16", "value": 0.01, "source": "x"}] * 2},
            ("W4A16",),
        ),
    ],
)
def test_each_mistake_is_one_sentence(tmp_path: Path, margin: dict[str, Any], named: tuple[str, ...]) -> None:
    file = child(tmp_path, **margin)
    with raises(UsageError, "policy-invalid", *named) as caught:
        read_policy(file)
    assert str(caught.value) in policy_problems(file)
