"""Comparisons of methods, settings and models."""
