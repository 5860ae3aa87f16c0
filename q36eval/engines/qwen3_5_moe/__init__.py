"""What computes Qwen3.5-MoE on a GPU, and that class alone: fused layers, and decoding steps that are captured once."""
