"""The tables of docs/serving_fields.md, which the site makes.

Every field of a request's body with what it takes, from the models that check it (``dllm.serve.dialects.fields``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from dllm.serve.dialects.fields import ChatBody, CompletionBody, ConstraintOptions, Diffusion
from experiments.support.markdown import table

HEADS = ("field", "what it takes, and what it means")
NOTHING = "without effect"  # how the description of a field begins that is taken and changes nothing


def rows(*models: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """The fields of some models, each once, that change something."""
    shapes = [model.model_json_schema() for model in models]
    known: dict[str, Mapping[str, Any]] = {
        name: shape for whole in reversed(shapes) for name, shape in whole["properties"].items()
    }
    for name in dict.fromkeys(name for whole in shapes for name in whole["properties"]):
        words = str(known[name].get("description", ""))
        if not words.startswith(NOTHING):
            kind = takes(known[name])
            yield f"`{name}`", f"{kind}: {words}".removeprefix(": ").replace("|", "/")


def takes(shape: Mapping[str, Any]) -> str:
    """A JSON schema in a few words: kinds, and bounds that a reader may meet."""
    forms = (shape, *shape.get("anyOf", ()))
    kinds = [str(one["type"]) for one in forms if isinstance(one.get("type"), str)]
    kinds += ["object"] * any("$ref" in one or "allOf" in one for one in forms)
    words = " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    bounds = {key: one[key] for one in forms for key in LIMITS if key in one}
    limits = [LIMITS[key].format(value) for key, value in bounds.items() if value < MANY]
    return ", ".join([*filter(None, [words]), *limits])


LIMITS = {"minimum": "from {}", "exclusiveMinimum": "above {}", "maximum": "to {}"}
MANY = 2**31 - 1


def passing(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def tables() -> dict[str, str]:
    """By name: what the page has in the place of ``<!-- made: fields NAME -->``."""
    shapes = (ChatBody.model_json_schema(), CompletionBody.model_json_schema())
    idle = [
        name
        for whole in shapes
        for name, shape in whole["properties"].items()
        if str(shape.get("description", "")).startswith(NOTHING)
    ]
    others = {**ChatBody.others, **CompletionBody.others}.items()
    return {
        "request": table(HEADS, rows(ChatBody, CompletionBody), words=2) + "\n",
        "diffusion": table(HEADS, rows(Diffusion), words=2) + "\n",
        "constraint": table(HEADS, rows(ConstraintOptions), words=2) + "\n",
        "without effect": passing(dict.fromkeys([*idle, *(name for name, row in others if row.neutral is None)]))
        + "\n",
        "neutral": passing(name for name, row in others if row.neutral is not None and row.why) + "\n",
    }
