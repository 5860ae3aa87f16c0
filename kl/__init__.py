"""The KL probe: the divergence of a branch's next-token distribution from the reference's, in nats per token.

A corpus (`corpus`, `corpus_config`, `hub_datasets`) and the reference's own sampled answers (`on_policy`) are planned
into windows of scored tokens (`planning`, `spans`). `probe` stores the reference's final hidden states as its digest;
`scoring` and `divergence` turn both deployments' states into figures for every token, in float64 or on a GPU.
`measurements` sums them by document, `breakdown` by token (quantiles, groups) and declares the figures in advance;
`tokens` stores every token on disk. `floor` and `floor_file` compare the reference with itself; `attribution` finds the
tensors that cause the divergence.

It may import the core (`q36eval.*`) but neither another probe nor the app. Modules that compute import torch at the
top; modules that a page or a policy reads (`measurements`, `breakdown`, `corpus*`, `planning`) do not import it.

To add a metric: add its `Metric` in `measurements` (from documents' sums) or `breakdown` (from single tokens), and its
column in `probe`. A kind of corpus: a source in `corpus_config`. A corpus of a shipped suite: a plan in `corpora/`.
"""
