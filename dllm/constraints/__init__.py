"""Constrained decoding: what is decoded is a word of a given language, whatever is committed when and where."""
