"""Chat templates of ours in the shapes of published ones, and as folders."""

from pathlib import Path

from q36eval.config.family import ToolFormat

_CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}%CALLS%{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"  # noqa: E501
_TOOLS = "{% if tools %}Tools: {{ tools | tojson }}\n{% endif %}"
DROPS_TOOLS = _CHATML.replace("%CALLS%", "{{ m.content }}")
HERMES = _TOOLS + _CHATML.replace(
    "%CALLS%",
    "{% for c in m.tool_calls %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}',
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% else %}'
    '{% if m.role == \'user\' and tools %}Answer with JSON, such as {"name": function, "parameters": its values}.\n'
    "{% for t in tools %}{{ t | tojson(indent=4) }}\n{% endfor %}{% endif %}{{ m.content }}{% endif %}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST]{{ m.content }}[/INST]{% elif m.tool_calls %}"
    "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "{% endfor %}%CALLS%{{ eos_token }}{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% elif m.role == 'system' %}{{ raise_exception('only user and assistant roles') }}{% else %}{{ m.content }}"
    "{% endif %}{% endfor %}"
)
MISTRAL_LIST = _MISTRAL.replace(
    "%CALLS%",
    '[TOOL_CALLS] [{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "arguments": '
    '{{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]',
)
MISTRAL_NAMED = _MISTRAL.replace(
    "%CALLS%",
    "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]"
    "{{ c.function.arguments | tojson }}{% endfor %}",
)
HARMONY = (
    "{% for m in messages %}{% if m.tool_calls %}<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}"
    "<|channel|>commentary json<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif m.role == 'tool' %}<|start|>functions.{{ m.name }} to=assistant<|channel|>commentary<|message|>"
    "{{ m.content | tojson }}<|end|>{% else %}<|start|>{{ 'developer' if m.role == 'system' else m.role }}<|message|>"
    "{{ m.content }}{% if loop.first and tools %}\n{% for t in tools %}type {{ t.function.name }} = (_: { "
    "{% for key in t.function.parameters.properties %}{{ key }}, {% endfor %}}){% endfor %}{% endif %}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
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
    "mistral list": ("mistral", MISTRAL_LIST),
    "mistral named": ("mistral", MISTRAL_NAMED),
    "harmony": ("harmony", HARMONY),
}


def templated(folder: Path, template: str) -> Path:
    """A folder with that chat template and nothing else."""
    folder.mkdir(exist_ok=True)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder
