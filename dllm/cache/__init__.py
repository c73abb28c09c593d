"""Caches: for each forward, which positions are computed, written and attended to. One file per policy."""
