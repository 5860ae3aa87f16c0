"""The KL probe: how far a branch's next-token distribution lies from the reference's, in nats per token.

A corpus (`corpus`, `corpus_config`, `hub_datasets`) and the reference's own sampled answers (`on_policy`) are planned
into windows whose tokens are scored (`planning`, `spans`). `probe` keeps the reference's final hidden states as its
digest; `scoring` and `divergence` turn both deployments' states into figures of every token, in float64 or on a GPU.
`measurements` sums them by document, `breakdown` by token (quantiles, groups) and says beforehand which figures there
will be, `tokens` keeps every token on disk. `floor` and `floor_file` are the reference against itself;
`attribution` says which tensors cost the divergence.

It may import the core (`q36eval.*`) and neither another probe nor the app. torch is imported at the top of what
computes and of nothing that a page or a policy reads (`measurements`, `breakdown`, `corpus*`, `planning`).

To add a metric: its `Metric` in `measurements` (of documents' sums) or `breakdown` (of single tokens), its column in
`probe`. A kind of corpus: a source in `corpus_config`. A corpus of a shipped suite: a plan in `corpora/`.
"""
