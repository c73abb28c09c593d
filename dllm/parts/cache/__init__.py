"""Caches: which columns each forward computes, keeps and attends to. One file per policy."""
