"""A whole gate at the full shape of Qwen3.6-35B-A3B, rehearsed with random weights: see `__main__`."""
