"""The page on canaries holds: its examples fit together, and it explains every key and every check."""

import re
from pathlib import Path

from q36eval.canaries.checks import CHECKS
from q36eval.canaries.specification import CanarySpec, Family, FixedPrompt, GenerationSettings, read_spec

PAGE = (Path(__file__).parents[2] / "docs" / "canaries.md").read_text(encoding="utf-8")


def test_the_example_is_a_canary_with_every_key(tmp_path: Path) -> None:
    example, policy = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "example.yaml"
    file.write_text(example, encoding="utf-8")
    spec = read_spec(file)
    assert set(CanarySpec.model_fields) - spec.model_fields_set == {"family"}
    assert f"slice: {spec.id}\n" in policy
    assert spec.must_pass[0].model_fields_set == set(FixedPrompt.model_fields)


def test_every_key_and_every_check_is_explained() -> None:
    explained = set(re.findall(r"`([a-z_]+)`", PAGE))
    fields = {name for model in (CanarySpec, FixedPrompt, GenerationSettings, Family) for name in model.model_fields}
    assert fields <= explained
    rows = set(re.findall(r"^\| `([a-z_]+)` \| ", PAGE, re.MULTILINE))
    assert set(CHECKS) <= rows
