"""Kernels: a plain torch reference, the definition, next to whatever is faster. One file per kernel."""
