"""The probe `served`: faults that only a served model shows, found by repeating requests with one thing changed.

It needs no reference. `prompts` builds the prompts; `comparison` decides when two answers differ by more than rounding,
and tests that against the endpoint's own nondeterminism; `differentials` changes one thing at a time (prefix cache,
concurrency, load, streaming, another endpoint); `messages` compares a chat answer with the model's raw text, to
separate faults of model, parser and server; `chat` requests both; `probe` runs them all.
"""
