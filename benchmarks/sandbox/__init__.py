"""The workshop of the sandbox: what made the checkpoints, tasks, texts and prompts in `data/`, and measures them.

Run from the repository's root, for instance `python -m benchmarks.sandbox.freeze`; it is not installed, and nothing
installed imports it. What `q36eval sandbox` needs to build and verify the branches is `q36eval.app.sandbox`.
"""
