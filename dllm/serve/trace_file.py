"""A reply's trace as the file that ``python -m dllm.view`` opens and ``task=replay`` decodes again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import isfinite
from typing import Any

from torch import Tensor

from dllm.constraints.kinds import Constraint
from dllm.record.trace import Trace
from dllm.serve.jobs import Job


def trace_file(name: str, job: Job, trace: Trace, config: Mapping[str, Any]) -> dict[str, Any]:
    """The file's content. config: the settings of the server's model."""
    chosen, masked = job.chosen, job.request.masked
    sampling = {field.name: getattr(chosen.sampling, field.name) for field in fields(chosen.sampling)}
    settings = {**config, **chosen.config, "gen_length": list(masked).count(True), "sampling": sampling}
    request, asked = job.request, job.request.constraint
    constraint = asked.to_json() if isinstance(asked, Constraint) else None
    data = {"config": settings, "constraint": constraint, "start": request.start, "trace": trace.to_json()}
    return {"id": name, "sample": 0, "seed": request.seed, "batch": [[name, 0]], **_plain(data)}


def _plain(value: Any) -> Any:
    """What JSON can hold: no tensors, no tuples, and null for numbers that are none."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(entry) for entry in value]
    return value if not isinstance(value, float) or isfinite(value) else None
