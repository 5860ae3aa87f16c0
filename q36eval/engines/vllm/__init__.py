"""The engine `vllm`: vLLM's actual computation of a checkpoint, in a separate environment, with exact hidden states.

vLLM pins other versions than q36eval, so it runs in a separate environment: `environment` finds its packages, `process`
starts our program in it (`plugin/`, a separate package) and communicates with it, `engine` is the `Engine`.
"""
