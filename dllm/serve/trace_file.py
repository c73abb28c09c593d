"""A reply's trace as the file that ``python -m dllm.view`` opens and ``task=replay`` decodes again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from dllm.record.trace import Trace, origin_of
from dllm.serve.jobs import Job


def trace_file(name: str, job: Job, trace: Trace, config: Mapping[str, Any]) -> dict[str, Any]:
    """The file's content. config: the settings of the server's model."""
    chosen, masked = job.chosen, job.request.masked
    sampling = {field.name: getattr(chosen.parts.sampling, field.name) for field in fields(chosen.parts.sampling)}
    settings = {**config, **chosen.config, "gen_length": list(masked).count(True), "sampling": sampling}
    return replace(trace, origin=origin_of(job.request, (name, 0), [(name, 0)], settings)).content()
