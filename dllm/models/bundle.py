"""A model ready to decode: network, config, tokenizer and the ids that matter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from dllm.errors import UserError, nearest
from dllm.kernels.choose import use_triton
from dllm.kernels.packed import can_pack
from dllm.kernels.packed import pack as pack_weights
from dllm.models import quantize as quantization
from dllm.models.config import ModelConfig
from dllm.models.ids import Ids, resolve_ids
from dllm.models.tokenizer import Tokenizer
from dllm.models.transformer import Transformer
from dllm.models.weights import load_model, read_config, resolve

CHECKPOINTS = Path(__file__).parent / "checkpoints"
DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}


@dataclass(frozen=True)
class Model:
    """What ``load`` returns. ``config`` holds the resolved mask, eos and pad ids; ``quantize`` is as it was given."""

    transformer: Transformer
    config: ModelConfig
    tokenizer: Tokenizer | None
    ids: Ids
    name: str
    path: Path
    quantize: str | None = None


def shipped() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(folder.name for folder in CHECKPOINTS.glob("*") if (folder / "config.json").is_file())


def locate(path: str | Path, weights: bool = True) -> Path:
    """Folder of a shipped model, a local folder or a hub id (downloaded; ``weights`` False: without its weights)."""
    name = str(path)
    if name in shipped():
        return CHECKPOINTS / name
    if "/" not in name and not Path(name).expanduser().is_dir():
        raise UserError(
            f"model.path={name!r} is no shipped model ({', '.join(shipped()) or 'there are none'}), no folder here and "
            f"no hub id of the form owner/name.{nearest(name, shipped())}"
        )
    return resolve(path, weights)


def load(
    path: str | Path, device: str = "cpu", dtype: str | torch.dtype = "float32", mask_id: int | None = None,
    kernels: str = "auto", quantize: str | None = None, pack: bool = True,
) -> Model:
    """Load a shipped model, a local folder or a hub id for decoding.

    device: ``cpu``, ``cuda``, ``cuda:1``, ... or ``auto`` (all GPUs, else the CPU). dtype: of the weights and the
    arithmetic. mask_id: overrides the checkpoint's. kernels: ``triton``, ``torch`` or ``auto`` (Triton's on GPUs that
    have them). quantize: ``int8`` for weights in eight bits (torchao), to be decoded with runtime=compile. pack:
    float32 weights on a CPU in oneDNN's layout, faster but closed to runtime=compile. Raises UserError when anything
    does not fit, before weights are read where it can.
    """
    kind, place = parse_dtype(dtype), parse_device(device)
    triton = use_triton(kernels, place_of(place))
    quantization.check(quantize)
    _, config, tokenizer, ids = describe(path, mask_id)
    folder = locate(path)
    transformer = load_model(folder, place, kind, config)
    transformer.use_kernels(triton)
    if quantize is not None:
        quantization.quantize(transformer, quantize)
    elif pack and not triton and can_pack(transformer.device, transformer.dtype):
        pack_weights(transformer)
    return Model(transformer, config, tokenizer, ids, Path(path).expanduser().resolve().name, folder, quantize)


def describe(path: str | Path, mask_id: int | None = None) -> tuple[Path, ModelConfig, Tokenizer | None, Ids]:
    """Folder, config, tokenizer and ids of a model, without its weights.

    Each id comes from the first that knows it: the argument, config.json, the tokenizer. A missing eos is the pad id
    and a missing pad is eos (they are one in most published checkpoints). The config returned holds the result.
    Raises UserError when no usable mask or eos id is known.
    """
    folder = locate(path, weights=False)
    config = read_config(folder)
    tokenizer = Tokenizer.from_folder(folder) if Tokenizer.present(folder) else None
    config, ids = resolve_ids(config, tokenizer, mask_id)
    return folder, config, tokenizer, ids


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """One of the supported dtypes, by name or as torch's object."""
    found = DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise UserError(f"dtype={str(dtype)!r} must be one of {', '.join(DTYPES)}.{nearest(str(dtype), DTYPES)}")
    return found


def place_of(device: str) -> torch.device:
    """The device that ``auto`` stands for here."""
    if device != "auto":
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def parse_device(device: str) -> str:
    """The device as given. Raises UserError when torch does not know it or this machine lacks it."""
    if device == "auto":
        return device
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device={device!r} must be auto, cpu, cuda or cuda:NUMBER.") from error
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device={device!r} is not there: this machine shows torch {torch.cuda.device_count()} CUDA devices. "
            "Use device=auto or device=cpu."
        )
    return device
