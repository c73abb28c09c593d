"""What is computed from results, traces and models."""
