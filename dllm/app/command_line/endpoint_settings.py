"""``model=endpoint``: which settings it has, and which have no meaning beside it. Keys of addresses are no settings."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from dllm.common.coerce import coerce
from dllm.common.errors import Refusal, UserError, in_range
from dllm.compose.naming import CHOICES, part_at, typed_name, value_text

ENDPOINT_KINDS = {
    "name": "str | None",
    "url": "str | None",
    "key_env": "str | None",
    "at_once": "int",
    "timeout": "float",
    "retries": "int",
    "body": "Mapping[str, Any] | None",
}
ENDPOINT_GROUPS = ("model", "task", "hydra", "experiment", "grids")
ENDPOINT_SETTINGS = (
    "gen_length",
    "samples",
    "seed",
    "stop",
    "sampling.temperature",
    "sampling.top_p",
    "name",
    "output",
    "resume",
    "live",
    "prompt",
    "prompts",
)
NETWORK_PARTS = ("sampler", "blocks", "cache", "eos", "length", "constraint")
ALTERNATIVES = {"batch_size": "For several requests at a time set {model.at_once=8}."}
EVALUATES = "dllm.app.commands.evaluate.run"
SECRET = re.compile(r"model\.(?!key_env$)\w*(key|token|secret|password)", re.IGNORECASE)
VARIABLE_NAME = re.compile(r"[A-Z_][A-Z0-9_]*", re.ASCII)  # in small letters it may be the key itself


def is_endpoint(config: Mapping[str, Any]) -> bool:
    """Whether the model is behind an address."""
    return "url" in config["model"]


def as_endpoint(config: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The configuration of an endpoint without the parts that only a network has; any other as it is. names: the
    settings that the user typed. Raises UserError for those of them that have no meaning."""
    if not is_endpoint(config):
        return config
    if config["task"].get("run") != EVALUATES:
        raise Refusal(
            "{task.name:value} needs the network itself, and {model=endpoint} is an address. Ask it the questions of "
            "a task, such as {task=parallelbench}, or your own by {task=jsonl} {task.path=FILE}.",
            {"task.name": f"task={config['task'].get('name')}"},
            at="task",
        )
    for name in names:
        place = name.replace("/", ".")
        value, its = part_at(config, place), place.partition(".")[0] in ENDPOINT_GROUPS or name in ENDPOINT_SETTINGS
        if not its or (name, value) == ("gen_length", "auto"):
            raise Refusal(
                f"{{{name}}} has no meaning beside {{model=endpoint}}, which decodes by its own rules and tells only "
                "its text. Drop it, or choose a model of this machine.",
                [typed_name(config, place) if isinstance(value, Mapping) else value_text(value)],
                note=ALTERNATIVES.get(name, ""),
            )
    places = {place: name for place, name in config[CHOICES].items() if place.partition(".")[0] not in NETWORK_PARTS}
    return {**config, **{part: {} for part in NETWORK_PARTS}, CHOICES: places}


def checked_endpoint(model: Mapping[str, Any]) -> dict[str, Any]:
    """The settings ``model`` of an endpoint. Raises UserError for a wrong value, and where one is missing."""
    settings = {**model, **{key: coerce(f"model.{key}", model.get(key), kind) for key, kind in ENDPOINT_KINDS.items()}}
    for name, such in (("url", "http://127.0.0.1:8000/v1"), ("name", "NAME")):
        if not settings[name]:
            raise Refusal(f"{{model=endpoint}} needs {{model.{name}={such}}}.", at=f"model.{name}")
        for sentence in slips(f"model.{name}", settings[name]):
            raise UserError(sentence)
    for sentence in slips("model.key_env", settings["key_env"]):
        raise UserError(sentence)
    in_range("model.at_once", settings["at_once"], 1, 1000)
    in_range("model.retries", settings["retries"], 0, 1000)
    in_range("model.timeout", settings["timeout"], 0.001)
    return settings


def slips(name: str, value: Any) -> Iterator[str]:
    """What is wrong with a setting that may hold a key, or with an address, in sentences that do not say it."""
    way_out = "Keep the key in a variable of the environment, and name that: model.key_env=OPENAI_API_KEY."
    if SECRET.fullmatch(name):
        yield f"{name} is no setting: settings are kept in run folders, and a key must not be. {way_out}"
    elif name == "model.key_env" and value not in (None, "null") and not VARIABLE_NAME.fullmatch(str(value)):
        yield f"model.key_env is not the name of a variable, in capitals, and may be a key. {way_out}"
    elif name == "model.url" and value not in (None, "null"):
        parts = urlsplit(str(value))
        if parts.username is not None or parts.query or parts.fragment:
            yield f"model.url holds more than an address, and is kept in run folders. {way_out}"
        elif parts.scheme not in ("http", "https") or not parts.netloc:
            yield f"model.url={value!r} is no address. Write one such as http://127.0.0.1:8000/v1."
        elif parts.path.rstrip("/").endswith("/chat/completions"):
            yield f"model.url={value!r}: write what is before /chat/completions."
