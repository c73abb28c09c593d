"""The mini models: their tokenizer, data, training, evaluation and card."""
