"""With what the five cards serve their branches, as `branches show` prints it; read from the cards by hand."""

import pytest

from q36eval.app.targets import load_family
from q36eval.config import Paths

NONE = "none named"
CARDS = {
    ("qwen3.6-35b-a3b", "main"): {
        "engine": ["0.20.x"],
        "KV cache": ["turboquant_4bit_nc", "fp8_e4m3"],
        "patches": ["39931", "40798", "2026-05-05"],
        "parser": [NONE],
    },
    ("qwen3.6-35b-a3b", "fp8-head"): {
        "engine": ["0.20.x"],
        "KV cache": ["turboquant_4bit_nc", "fp8_e4m3"],
        "patches": ["39931", "40798", "vllm_patches/"],
        "parser": [NONE],
    },
    ("qwen3.6-35b-a3b", "w4a16"): {
        "engine": ["vLLM 0.21.0"],
        "KV cache": ["fp8"],
        "patches": ["none needed"],
        "parser": ["qwen3_xml", "qwen3"],
    },
    ("qwen3.6-35b-a3b", "gptq-int4"): {
        "engine": ["vLLM 0.19.1", "SGLang 0.5.10", "moe_wna16"],
        "KV cache": ["fp8", "fp8_e4m3", "fp16", "bf16"],
        "patches": [NONE],
        "parser": ["qwen3_coder", "qwen3"],
    },
    ("qwen3.6-35b-a3b", "nvfp4-modelopt"): {
        "engine": ["SGLang 0.5.9", "dev-cu13", "vLLM 0.20.2", "aeon-7", "1.2.0", "1.2.1"],
        "KV cache": ["FP8"],
        "patches": ["Qwen3_5MoeForConditionalGeneration"],
        "parser": [NONE, "qwen3"],
    },
    ("qwen3.5-35b-a3b", "nvfp4"): {
        "engine": ["vLLM 0.18.0"],
        "KV cache": ["not quantized"],
        "patches": [NONE],
        "parser": ["qwen3_coder", "qwen3"],
    },
}


@pytest.mark.parametrize(("family", "branch"), CARDS)
def test_a_card_is_served_as_it_says(family: str, branch: str) -> None:
    serving = load_family(family, Paths.default()).branches[branch].serving
    assert all(fact.source.endswith("model card") for fact in serving)
    for topic, named in CARDS[family, branch].items():
        told = " ".join(fact.value for fact in serving if topic in fact.what)
        assert [words for words in named if words not in told] == [], topic
