"""The text model with the hybrid cache's interface, which vLLM 0.26 gives only to the multimodal wrapper."""

from vllm.model_executor.models.interfaces import IsHybrid
from vllm.model_executor.models.qwen3_5 import Qwen3_5ForConditionalGeneration, Qwen3_5MoeForCausalLM

_OF_WRAPPER = vars(Qwen3_5ForConditionalGeneration)


class TextModel(Qwen3_5MoeForCausalLM, IsHybrid):  # type: ignore[misc] # vLLM is in another environment
    """Shapes and dtypes of the recurrent states come from the wrapper's functions: it has the same text model."""

    get_mamba_state_dtype_from_config = _OF_WRAPPER["get_mamba_state_dtype_from_config"]
    get_mamba_state_shape_from_config = _OF_WRAPPER["get_mamba_state_shape_from_config"]
    get_mamba_state_copy_func = _OF_WRAPPER["get_mamba_state_copy_func"]
