"""Chat templates of ours in the shapes of published ones, and as folders."""

from pathlib import Path

import yaml

from q36eval.config.family import ToolFormat

_SHAPES = yaml.safe_load(Path(__file__).with_name("shapes.yaml").read_text(encoding="utf-8"))
_CHATML, _MISTRAL = _SHAPES["chatml"], _SHAPES["mistral"]
DROPS_TOOLS: str = _CHATML.replace("%CALLS%", "{{ m.content }}")
HERMES: str = _SHAPES["tools"] + _CHATML.replace("%CALLS%", _SHAPES["hermes calls"])
LLAMA: str = _SHAPES["llama"]
OTHER_FORMAT = HERMES.replace("tool_call>", "tools>")
NO_SYSTEM = DROPS_TOOLS.replace(
    "{% for m", "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}{% for m", 1
)
ALWAYS_REASONS = HERMES.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
SWITCHES = HERMES.replace(
    "assistant\n{% endif %}", "assistant\n{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

BY_FORMAT: dict[str, tuple[ToolFormat, str]] = {
    "hermes": ("hermes", HERMES),
    "llama_json": ("llama_json", LLAMA),
    "mistral list": ("mistral", _MISTRAL.replace("%CALLS%", _SHAPES["mistral calls in a list"])),
    "mistral named": ("mistral", _MISTRAL.replace("%CALLS%", _SHAPES["mistral calls by name"])),
    "harmony": ("harmony", _SHAPES["harmony"]),
}


def templated(folder: Path, template: str) -> Path:
    """A folder with that chat template and nothing else."""
    folder.mkdir(exist_ok=True)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder
