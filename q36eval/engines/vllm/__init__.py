"""The engine `vllm`: what vLLM really computes of a checkpoint, in its own environment, with exact hidden states.

vLLM pins other versions than q36eval, so it runs in an environment of its own: `environment` says what is installed
there, `process` starts our program in it (`plugin/`, a package of its own) and speaks to it, `engine` is the `Engine`.
"""
