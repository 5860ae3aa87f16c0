"""GPU code for Qwen3.5-MoE only: fused layers, and decoding steps captured as graphs."""
