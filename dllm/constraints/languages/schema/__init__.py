"""JSON Schema, Draft 2020-12 and those from 4 on, as a language whose every word validates."""
