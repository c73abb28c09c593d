"""JSON Schema, Draft 2020-12, as a language of which every word validates."""

from dllm.constraints.languages.schema.language import schema_language

__all__ = ["schema_language"]
