"""Requests of lm-evaluation-harness, in our settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dllm.common.digest import seed_from
from dllm.errors import UserError

MAX_GEN_TOKS = 256  # lm-eval's default, and the field's for instruct models
SAMPLING_KWARGS = ("temperature", "top_p", "top_k")

RequestKey = tuple[str, int, int]  # task, number of the document, number of the repeat or of the choice


@dataclass(frozen=True)
class RequestGroup:
    """What requests that are decoded together have in common."""

    length: int  # tokens of the answer
    stop: tuple[str, ...]  # strings that end it
    settings: tuple[tuple[str, Any], ...]  # of ours, by name

    @staticmethod
    def of(options: Mapping[str, Any], length: int | None, escape_until: bool) -> RequestGroup:
        """From a request's gen_kwargs, which may hold settings of ours too. ``length`` overrides max_gen_toks.

        temperature, top_p and top_k count only with do_sample, since tasks that want greedy answers set them too.
        """
        left = dict(options)
        until, sampled = left.pop("until", None) or [], bool(left.pop("do_sample", False))
        length = length or left.get("max_gen_toks", MAX_GEN_TOKS)
        for name in (*SAMPLING_KWARGS, "max_gen_toks"):
            value = left.pop(name, None)
            if sampled and value is not None and name in SAMPLING_KWARGS:
                left[f"sampling.{name}"] = value
        stop = () if escape_until else tuple([until] if isinstance(until, str) else until)
        return RequestGroup(int(length or MAX_GEN_TOKS), stop, tuple(sorted(left.items())))


def request_keys(requests: Sequence[Any]) -> list[RequestKey]:
    """Each request's key. lm-eval hands in a repeated request several times, which the key numbers."""
    seen: Counter[tuple[str, int]] = Counter()
    keys = []
    for request in requests:
        place = str(request.task_name), int(request.doc_id or 0)
        keys.append((*place, seen[place]))
        seen[place] += 1
    return keys


def request_seed(seed: int, key: RequestKey) -> int:
    """A request's seed depends on the run's seed, the task, the document and the repeat, not on the order."""
    return seed_from(f"{seed}/{key}")


def whole_batch_size(batch_size: int | str) -> int:
    """lm-eval's batch_size. Raises UserError for ``auto`` and the like."""
    if not str(batch_size).isdigit():
        raise UserError(f"batch_size={batch_size!r} must be a whole number: dllm does not search for one by itself.")
    return int(batch_size)


def device_setting(device: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval's device as our setting. Its default is cuda:0; without CUDA the model's own setting stays."""
    if device is None or "model.device" in settings or (device.startswith("cuda") and not torch.cuda.is_available()):
        return {}
    return {"model.device": device}
