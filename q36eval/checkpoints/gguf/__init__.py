"""GGUF, llama.cpp's format, as a checkpoint of this family.

`files` says which files a model is and holds them, `header` reads one within limits, `settings` makes a configuration
of its metadata, `names` and `entries` turn its tensors back into the model's weights, `opening` puts that together.
What blocks decode to is in `q36eval.checkpoints.formats.gguf`, what is judged of a file in
`q36eval.checkpoints.inspection.gguf` and `gguf_grids`.
"""
