"""q36eval: the release gate for quantized LLM branches.

Four links lead to the top-level folders of the repository: `app` (command line, dashboard), `kl`, `evals`, `canaries`
(the probes). Here lies what they stand on: `engines` and `checkpoints` answer and decode, `gate` and `stats` decide,
`run` is a gate's run, `history`, `drift`, `references` and `reports` keep and show, `config` holds what people write.
Imports point one way, `app` -> `run` -> probes -> the rest, and this module imports nothing. `docs/architecture.md` has
the figure.
"""
