"""The probe `served`: what only a served model shows, found by asking the same twice with one thing changed.

It needs no reference. `prompts` says what is asked; `comparing` when two answers differ by more than rounding, and how
that is tested against how often the endpoint differs from itself; `differentials` changes one thing at a time (prefix
cache, concurrency, load, streaming, another endpoint); `messages` holds a chat answer against what the model itself
wrote, so that model, parser and server are told apart; `chat` asks for both; `probe` runs them all.
"""
