"""dllm as a model of lm-evaluation-harness."""
