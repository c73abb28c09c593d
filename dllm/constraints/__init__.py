"""Constrained decoding: what is decoded is a word of a given language, in every order of commits."""

from __future__ import annotations

from dllm.constraints.automata import automaton_of, language_of
from dllm.constraints.kinds import Choice, Constraint, FunctionCall, Grammar, Json, JsonSchema, Regex

__all__ = [
    "Choice",
    "Constraint",
    "FunctionCall",
    "Grammar",
    "Json",
    "JsonSchema",
    "Regex",
    "automaton_of",
    "language_of",
]
