"""The figures of the documentation: which command makes each, and whether it still does."""
