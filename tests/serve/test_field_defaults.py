"""What a request means that leaves a field out is what is written, and what a field may be at most:
``python -m tests.serve.test_field_defaults`` writes it anew.

A changed default changes the replies of clients who never named the field: a line of the difference to look at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path

import yaml

import dllm.serve.http.app  # noqa: F401  loads the fields of every form
from dllm.parts import AnswerRequest, BodyObject

TABLE = Path(__file__).parents[1] / "data" / "request_defaults.yaml"


def defaults() -> dict[str, dict[str, str]]:
    """By class and field, without fields that must be given and bear no bound."""
    bodies = {kind.__name__: dict(_of_body(kind)) for kind in _below(BodyObject)}
    request = {field.name: repr(field.default) for field in fields(AnswerRequest) if field.default is not MISSING}
    return {name: given for name, given in sorted(bodies.items()) if given} | {"AnswerRequest": request}


def _below(kind: type[BodyObject]) -> Iterator[type[BodyObject]]:
    for inner in kind.__subclasses__():
        if inner.__module__.startswith("dllm."):
            yield inner
        yield from _below(inner)


def _of_body(kind: type[BodyObject]) -> Iterator[tuple[str, str]]:
    for name, field in kind.model_fields.items():
        if name in kind.__annotations__:  # others are their class's
            value = "required" if field.is_required() else repr(field.get_default(call_default_factory=True))
            bounds = [repr(bound) for bound in field.metadata] + [repr(field.json_schema_extra)]
            yield name, " ".join([value, *(bound for bound in bounds if bound != "None" and " at 0x" not in bound)])


def test_a_field_that_is_left_out_means_what_is_written() -> None:
    assert defaults() == yaml.safe_load(TABLE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    TABLE.write_text(yaml.safe_dump(defaults(), sort_keys=False, width=120), encoding="utf-8")
