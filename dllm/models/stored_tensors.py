"""The stored tensors of a checkpoint, whatever form its files have, under their published names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from dllm.models.config import ModelConfig
from dllm.models.files import FLOATS, Contents, Stored, read_contents
from dllm.models.gguf_config import gguf_contents
from dllm.models.gguf_file import is_gguf, read_gguf
from dllm.models.grouped_packing import with_packed


def contents_of(folder: Path, config: ModelConfig) -> Contents:
    """The headers of a checkpoint. Raises UserError as ``read_contents``, and for packed weights that do not fit each
    other."""
    if is_gguf(folder):
        return gguf_contents(read_gguf(folder), config)
    found = read_contents(folder)
    return found if config.packed is None else with_packed(found, config.packed)


def packed_words(stored: Mapping[str, Stored], kind: str, kept: int) -> str:
    """A sentence about matrices that come in few bits and what becomes of them; empty without any. kind: a dtype,
    or one of ``model.quantize``. kept: matrices that keep their steps."""
    packed = Counter(one.dtype for one in stored.values() if one.packing is not None and one.dtype not in FLOATS)
    if not packed:
        return ""
    said = ", ".join(f"{count} matrices as {name}" for name, count in packed.most_common())
    if kept:
        rest = packed.total() - kept
        anew = f"; the other {rest} are widened, and those of layers rounded to 4 bits anew" if rest else ""
        return f"the file has {said}: {kept} keep their steps, with scales in bfloat16{anew}."
    if kind.startswith("int"):
        return f"the file has {said}: they are widened, and those of layers rounded to {kind.removeprefix('int')} bits."
    return f"the file has {said}: they are widened to {kind}. model.quantize narrows them again."
