"""The GPU hour: one command that proves and measures the framework on a GPU in under 30 minutes."""
