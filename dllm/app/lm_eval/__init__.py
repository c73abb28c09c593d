"""dllm as a model of lm-evaluation-harness, whose own command line then asks and scores."""
