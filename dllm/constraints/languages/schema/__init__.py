"""JSON Schema, Draft 2020-12 and those from 4 on, as a language whose every word validates."""

from dllm.constraints.languages.schema.counts import largest_count
from dllm.constraints.languages.schema.function_calls import call_language
from dllm.constraints.languages.schema.language import schema_language

__all__ = ["call_language", "largest_count", "schema_language"]
