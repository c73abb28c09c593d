"""Weights as other programs store them: GGUF, GPTQ, AWQ, MLX, compressed-tensors, bitsandbytes."""
