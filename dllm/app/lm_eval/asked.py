"""What lm-evaluation-harness asks of a model, in our words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch

from dllm.errors import UserError

MAX_GEN_TOKS = 256  # lm-eval's default, and the field's for instruct models
SAMPLING = ("temperature", "top_p", "top_k")

Key = tuple[str, int, int]  # task, number of the document, number of the repeat or of the choice


@dataclass(frozen=True)
class Asked:
    """What requests that may be decoded together have in common: tokens of the answer, strings that end it, and
    settings of their own."""

    length: int
    stop: tuple[str, ...]
    settings: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(options: Mapping[str, Any], length: int | None, escape_until: bool) -> Asked:
        """A request's gen_kwargs: lm-eval's own, and settings of ours by their names. ``length`` rules over theirs;
        their temperature counts only with do_sample, since tasks that want greedy answers set one too."""
        left = dict(options)
        until, sampled = left.pop("until", None) or [], bool(left.pop("do_sample", False))
        length = length or left.get("max_gen_toks", MAX_GEN_TOKS)
        for name in (*SAMPLING, "max_gen_toks"):
            value = left.pop(name, None)
            if sampled and value is not None and name in SAMPLING:
                left[f"sampling.{name}"] = value
        stop = () if escape_until else tuple([until] if isinstance(until, str) else until)
        return Asked(int(length or MAX_GEN_TOKS), stop, tuple(sorted(left.items())))


def keys_of(requests: Sequence[Any]) -> list[Key]:
    """Each request's place; lm-eval hands in a repeated request several times."""
    seen: Counter[tuple[str, int]] = Counter()
    keys = []
    for request in requests:
        place = str(request.task_name), int(request.doc_id or 0)
        keys.append((*place, seen[place]))
        seen[place] += 1
    return keys


def seed_of(seed: int, key: Key) -> int:
    """A request's seed depends on the run's seed, the task, the document and the repeat, and not on the order."""
    return int.from_bytes(sha256(f"{seed}/{key}".encode()).digest()[:7])


def whole(batch_size: int | str) -> int:
    if not str(batch_size).isdigit():
        raise UserError(f"batch_size={batch_size!r} must be a whole number: dllm does not search for one by itself.")
    return int(batch_size)


def placed(device: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval's command line says cuda:0 unless told otherwise; without CUDA the model's own setting holds."""
    if device is None or "model.device" in settings or (device.startswith("cuda") and not torch.cuda.is_available()):
        return {}
    return {"model.device": device}
