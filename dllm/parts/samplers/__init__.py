"""Samplers: which positions to commit, from numbers alone. One file per rule."""
