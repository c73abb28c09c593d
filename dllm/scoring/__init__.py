"""What a model says of texts: rollouts with their log-probabilities, and decisions read from slots."""
