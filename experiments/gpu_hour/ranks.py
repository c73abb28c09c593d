"""Two ranks of a small model on one device, over gloo: whether they decode what one process does. NCCL wants a GPU for
each rank, so this proves the sums on a GPU's numbers, and nothing of their speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

SECONDS = 90.0  # two commands; every rank imports PyTorch and loads a small model
PROMPTS = ("Latin square: A,B,C,D", 'Sort the list:\n["Kai", "Emma", "Ada"]', 'Copy the list:\n["Hugo", "Ada"]')


def two_ranks(device: torch.device) -> dict[str, Any]:
    """Prompts, and how many have the same tokens and forwards. Raises RuntimeError with a command's complaint."""
    place = "cuda:0" if device.type == "cuda" else "cpu"
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "p.jsonl").write_text("".join(json.dumps({"prompt": one}) + "\n" for one in PROMPTS))
        alone, together = (decoded(folder, place, ranks) for ranks in (1, 2))
    equal = sum(one == other for one, other in zip(alone, together, strict=True))
    return {"prompts": len(alone), "equal": equal, "share": equal / len(alone)}


def decoded(folder: Path, device: str, ranks: int) -> list[tuple[list[int], int]]:
    """The tokens and forwards of every prompt."""
    command = [
        sys.executable,
        "-m",
        "dllm",
        "prompts=p.jsonl",
        f"model.device={device}",
        f"model.tp={ranks}",
        "runtime=eager",
        "cache=dual",
        f"name=of-{ranks}",
    ]
    path = {"PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)}
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **path}, capture_output=True, text=True, timeout=5 * SECONDS
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    rows = map(json.loads, (folder / "runs" / f"of-{ranks}" / "results.jsonl").read_text().splitlines())
    return [(row["tokens"], row["nfe"]) for row in sorted(rows, key=lambda row: int(row["id"]))]
