"""The text model on its own: checkpoints without a vision tower name `Qwen3_5MoeForCausalLM`."""

NAME = "Qwen3_5MoeForCausalLM"


def register_text_only() -> None:
    """Make the architecture known where this vLLM has it as a class and does not register it (0.26)."""
    from vllm import ModelRegistry

    if NAME in ModelRegistry.get_supported_archs():
        return
    ModelRegistry.register_model(NAME, "q36eval_vllm.text_model:TextModel")
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP, Qwen3_5ForConditionalGenerationConfig

    MODELS_CONFIG_MAP[NAME] = Qwen3_5ForConditionalGenerationConfig
