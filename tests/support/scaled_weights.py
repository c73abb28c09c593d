"""Folders as MLX, compressed-tensors, ModelOpt, transformers' float8 and bitsandbytes write them, of drawn numbers.

Codes and scales are drawn, written number by number from what the formats say, and the plain float32 folder of the
numbers that they stand for is written beside them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from dllm.parts import ModelConfig, network_of, published_shapes

Numbers = NDArray[Any]
Packed = tuple[dict[str, Tensor], Numbers]  # tensors by leaf, and the weights [N, D] in float32
FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def float8(code: int) -> float:
    """e4m3fn: bias 7, no infinity."""
    sign, power, rest = code >> 7, code >> 3 & 15, code & 7
    return (-1) ** sign * (rest / 8 * 2.0**-6 if power == 0 else (1 + rest / 8) * 2.0 ** (power - 7))


FLOAT8 = np.array([float8(code) for code in range(256)], np.float32)
SOUND8 = [code for code in range(256) if code not in (0x7F, 0xFF)]


def bytes_of(codes: Numbers, bits: int, multiple: int = 1) -> Numbers:
    """Rows of codes as one stream of bits, lowest first, filled up to a multiple of bytes."""
    planes = (codes.astype(np.uint8)[..., None] >> np.arange(bits, dtype=np.uint8)) & 1
    data = np.packbits(planes.reshape(len(codes), -1), axis=-1, bitorder="little")
    return np.pad(data, ((0, 0), (0, -data.shape[1] % multiple)))


def as_tensor(numbers: Numbers, dtype: torch.dtype | None = None) -> Tensor:
    found = torch.from_numpy(np.ascontiguousarray(numbers))
    return found if dtype is None else found.view(dtype)


def drawn_floats(draw: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Numbers]:
    found = torch.from_numpy(draw.uniform(0.002, 0.02, shape).astype(np.float32)).to(dtype)
    return found, found.float().numpy()


def spread(blocks: Numbers, block: tuple[int, int], shape: tuple[int, int]) -> Numbers:
    """What is there for each block, for each number; the last ones may be short."""
    rows, columns = (min(one, size) for one, size in zip(block, shape, strict=True))
    return blocks.repeat(rows, 0).repeat(columns, 1)[: shape[0], : shape[1]]


def mlx_affine(shape: tuple[int, int], draw: np.random.Generator, bits: int, group: int, dtype: torch.dtype) -> Packed:
    rows, columns = shape
    codes = draw.integers(0, 2**bits, shape)
    scales, scale = drawn_floats(draw, (rows, columns // group), dtype)
    biases, offset = drawn_floats(draw, (rows, columns // group), dtype)
    wide = spread(scale, (1, group), shape) * codes.astype(np.float32) + spread(-offset, (1, group), shape)
    return {"weight": as_tensor(bytes_of(codes, bits)).view(torch.uint32), "scales": scales, "biases": -biases}, wide


def mlx_floats(shape: tuple[int, int], draw: np.random.Generator, mode: str) -> Packed:
    group = 16 if mode == "nvfp4" else 32
    codes = draw.choice(SOUND8, shape) if mode == "mxfp8" else draw.integers(0, 16, shape)
    table, bits = (FLOAT8, 8) if mode == "mxfp8" else (FLOAT4, 4)
    powers = draw.integers(*((110, 114) if mode == "mxfp8" else (118, 121)), (shape[0], shape[1] // group))
    scale = np.float32(2.0) ** (powers - 127).astype(np.float32)
    if mode == "nvfp4":
        powers = draw.integers(1, 20, powers.shape)
        scale = FLOAT8[powers]
    wide = table[codes] * spread(scale, (1, group), shape)
    return {
        "weight": as_tensor(bytes_of(codes, bits)).view(torch.uint32),
        "scales": as_tensor(powers.astype(np.uint8)),
    }, wide


def floats8(
    shape: tuple[int, int],
    draw: np.random.Generator,
    block: tuple[int, int],
    scale_leaf: str = "weight_scale",
    dtype: torch.dtype = torch.bfloat16,
) -> Packed:
    codes = draw.choice(SOUND8, shape).astype(np.uint8)
    blocks = tuple(-(-size // one) for size, one in zip(shape, block, strict=True))
    scales, scale = drawn_floats(draw, blocks, dtype)  # type: ignore[arg-type]
    scale, scales = scale / 100, scales / 100
    scale = scales.float().numpy()
    return (
        {"weight": as_tensor(codes).view(torch.float8_e4m3fn), scale_leaf: scales},
        FLOAT8[codes] * spread(scale, block, shape),
    )


def floats8_by_powers(
    shape: tuple[int, int], draw: np.random.Generator, block: tuple[int, int], dtype: torch.dtype
) -> Packed:
    """DeepSeek's "ue8m0": scales are powers of two, as bytes that are their exponents (V4), or as float32 (V3.1)."""
    codes = draw.choice(SOUND8, shape).astype(np.uint8)
    powers = draw.integers(110, 114, [-(-size // min(one, size)) for size, one in zip(shape, block, strict=True)])
    scale = np.float32(2.0) ** (powers - 127).astype(np.float32)
    scales = as_tensor(scale) if dtype == torch.float32 else as_tensor(powers.astype(np.uint8)).view(dtype)
    return (
        {"weight": as_tensor(codes).view(torch.float8_e4m3fn), "weight_scale_inv": scales},
        FLOAT8[codes] * spread(scale, block, shape),
    )


def whole_numbers(
    shape: tuple[int, int], draw: np.random.Generator, bits: int, group: int, symmetric: bool, packed: bool
) -> Packed:
    group = shape[1] if group < 0 else group
    low, groups = -(2 ** (bits - 1)), -(-shape[1] // group)
    steps = draw.integers(low, -low, shape)
    zeros = np.zeros((shape[0], groups), np.int64) if symmetric else draw.integers(low, -low, (shape[0], groups))
    scales, scale = drawn_floats(draw, (shape[0], groups), torch.bfloat16)
    wide = (steps - spread(zeros, (1, group), shape)).astype(np.float32) * spread(scale, (1, group), shape)
    tensors = {"weight_scale": scales}
    if packed:
        data = as_tensor(bytes_of(steps - low, bits, 4)).view(torch.int32)
        tensors |= {"weight_packed": data, "weight_shape": torch.tensor(shape)}
        down = as_tensor(bytes_of((zeros - low).T, bits, 4)).view(torch.int32).T.contiguous()
    else:
        tensors |= {"weight": as_tensor(steps.astype(np.int8))}
        down = as_tensor(zeros.astype(np.int8))
    return tensors | ({} if symmetric else {"weight_zero_point": down}), wide


def nvfp4(shape: tuple[int, int], draw: np.random.Generator, modelopt: bool) -> Packed:
    codes, scales = draw.integers(0, 16, shape), draw.integers(1, 100, (shape[0], shape[1] // 16)).astype(np.uint8)
    data, small = as_tensor(bytes_of(codes, 4)), as_tensor(scales).view(torch.float8_e4m3fn)
    overall = np.float32(draw.uniform(0.01, 0.02) if modelopt else draw.uniform(50, 100))
    if modelopt:
        wide = FLOAT4[codes] * spread(FLOAT8[scales], (1, 16), shape) * overall
        return {
            "weight": data,
            "weight_scale": small,
            "weight_scale_2": torch.tensor(overall),
            "input_scale": torch.ones(()),
        }, wide
    wide = FLOAT4[codes] * spread(FLOAT8[scales] / overall, (1, 16), shape)
    return {
        "weight_packed": data,
        "weight_scale": small,
        "weight_global_scale": torch.tensor([overall]),
        "input_global_scale": torch.ones(1),
    }, wide


def powers_of_two(shape: tuple[int, int], draw: np.random.Generator, wide8: bool) -> Packed:
    found, wide = mlx_floats(shape, draw, "mxfp8" if wide8 else "mxfp4")
    data = found["weight"].view(torch.uint8)
    named = {"weight": data.view(torch.float8_e4m3fn)} if wide8 else {"weight_packed": data}
    return {**named, "weight_scale": found["scales"]}, wide


def four_bit_blocks(
    shape: tuple[int, int], draw: np.random.Generator, kind: str, block: int, nested: bool, storage: torch.dtype
) -> Packed:
    count, table = shape[0] * shape[1], np.sort(draw.uniform(-1, 1, 16)).astype(np.float32)
    codes, blocks = draw.integers(0, 16, count), -(-shape[0] * shape[1] // block)
    data = (np.pad(codes, (0, count % 2)).reshape(-1, 2) @ [16, 1]).astype(np.uint8).reshape(-1, 1)
    maxima = draw.uniform(0.1, 0.3, blocks).astype(np.float32)
    state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": list(shape)}
    tensors = {"": as_tensor(data.flatten()).view(storage).view(-1, 1), ".quant_map": as_tensor(table)}
    if nested:
        codes8, map8 = draw.integers(0, 256, blocks), np.sort(draw.uniform(-1, 1, 256)).astype(np.float32)
        outer = draw.uniform(0.05, 0.1, -(-blocks // 256)).astype(np.float32)
        maxima = map8[codes8] * outer.repeat(256)[:blocks] + np.float32(0.15)
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.15}
        tensors |= {
            ".nested_absmax": as_tensor(outer),
            ".nested_quant_map": as_tensor(map8),
            ".absmax": as_tensor(codes8.astype(np.uint8)),
        }
    else:
        tensors[".absmax"] = as_tensor(maxima)
    tensors[f".quant_state.bitsandbytes__{kind}"] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    return tensors, (table[codes] * maxima.repeat(block)[:count]).reshape(shape)


def eight_bit_rows(shape: tuple[int, int], draw: np.random.Generator) -> Packed:
    steps, maxima = draw.integers(-127, 128, shape).astype(np.int8), draw.uniform(0.1, 0.5, shape[0]).astype(np.float32)
    wide = steps.astype(np.float32) * maxima[:, None] / np.float32(127)
    return {
        "weight": as_tensor(steps),
        "SCB": as_tensor(maxima),
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }, wide


@dataclass(frozen=True)
class Form:
    """One kind of packed weights."""

    called: str  # what we call it
    said: Mapping[str, Any]  # of config.json
    pack: Callable[[tuple[int, int], np.random.Generator], Packed]


def mlx(called: str, pack: Callable[..., Packed], *how: Any, **said: Any) -> Form:
    return Form(f"MLX {called}", {"quantization": said, "quantization_config": said}, lambda a, b: pack(a, b, *how))


def compressed(called: str, kind: str, weights: Mapping[str, Any], pack: Callable[..., Packed], *how: Any) -> Form:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    said = {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
    return Form(called, {"quantization_config": said}, lambda a, b: pack(a, b, *how))


def whole(kind: str, bits: int, **said: Any) -> Form:
    """Whole numbers of compressed-tensors. said: of their columns, as config.json has it."""
    group, symmetric = said.get("group_size", -1), said.get("symmetric", True)
    how = bits, group, symmetric, kind == "pack-quantized"
    return compressed(f"INT{bits}", kind, {"num_bits": bits, **said}, whole_numbers, *how)


def said_by(called: str, said: Mapping[str, Any], pack: Callable[..., Packed], *how: Any) -> Form:
    return Form(called, {"quantization_config": said}, lambda a, b: pack(a, b, *how))


HUGE, WHOLE = 1 << 20, {"num_bits": 8, "type": "float"}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}
FORMS: dict[str, Form] = {
    **{
        f"mlx-{bits}-{group}": mlx(f"{bits}-bit", mlx_affine, bits, group, dtype, bits=bits, group_size=group)
        for bits, group, dtype in (
            (2, 64, torch.bfloat16),
            (3, 32, torch.float16),
            (4, 64, torch.bfloat16),
            (4, 32, torch.float32),
            (5, 64, torch.float16),
            (6, 32, torch.bfloat16),
            (8, 64, torch.float16),
        )
    },
    "mlx-mxfp4": mlx("mxfp4", mlx_floats, "mxfp4", bits=4, group_size=32, mode="mxfp4"),
    "mlx-mxfp8": mlx("mxfp8", mlx_floats, "mxfp8", bits=8, group_size=32, mode="mxfp8"),
    "mlx-nvfp4": mlx("nvfp4", mlx_floats, "nvfp4", bits=4, group_size=16, mode="nvfp4"),
    "fp8-tensor": compressed("FP8", "float-quantized", {**WHOLE, "strategy": "tensor"}, floats8, (HUGE, HUGE)),
    "fp8-channel": compressed("FP8", "float-quantized", {**WHOLE, "strategy": "channel"}, floats8, (1, HUGE)),
    "fp8-block": compressed(
        "FP8", "float-quantized", {**WHOLE, "strategy": "block", "block_structure": [48, 24]}, floats8, (48, 24)
    ),
    "int8": whole("int-quantized", 8, strategy="channel"),
    "int8-zeros": whole("int-quantized", 8, strategy="channel", symmetric=False),
    "w4a16": whole("pack-quantized", 4, strategy="group", group_size=32),
    "w4a16-zeros": whole("pack-quantized", 4, group_size=64, symmetric=False),
    "w4a16-short": whole("pack-quantized", 4, group_size=128),  # the last group of 192 columns has half of them
    "w3a16": whole("pack-quantized", 3, strategy="channel", symmetric=False),
    "nvfp4": compressed("NVFP4", "nvfp4-pack-quantized", {"num_bits": 4, "type": "float"}, nvfp4, False),
    "mxfp4": compressed("MXFP4", "mxfp4-pack-quantized", {"num_bits": 4, "type": "float"}, powers_of_two, False),
    "mxfp8": compressed("MXFP8", "mxfp8-quantized", {"num_bits": 8, "type": "float"}, powers_of_two, True),
    "modelopt-nvfp4": said_by("NVFP4", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4, True),
    "modelopt-fp8": said_by("FP8", {"quant_method": "modelopt", "quant_algo": "FP8"}, floats8, (HUGE, HUGE)),
    "fp8": said_by(
        "FP8",
        {"quant_method": "fp8", "weight_block_size": [32, 32]},
        floats8,
        (32, 32),
        "weight_scale_inv",
        torch.float32,
    ),
    **{
        f"fp8-ue8m0-{name}": said_by(
            "FP8",
            {"quant_method": "fp8", "weight_block_size": None if block[0] == HUGE else [*block], "scale_fmt": "ue8m0"},
            floats8_by_powers,
            block,
            dtype,
        )
        for name, block, dtype in (
            ("float", (32, 48), torch.float32),
            ("bytes", (32, 48), torch.float8_e8m0fnu),
            ("plain", (32, 48), torch.uint8),
            ("whole", (HUGE, HUGE), torch.float8_e8m0fnu),
        )
    },
    "nf4": said_by("NF4", BNB, four_bit_blocks, "nf4", 64, False, torch.uint8),
    "nf4-double": said_by("NF4", BNB, four_bit_blocks, "nf4", 64, True, torch.bfloat16),
    "fp4": said_by("FP4", BNB, four_bit_blocks, "fp4", 96, False, torch.uint8),
    "bnb-int8": said_by("INT8", {"quant_method": "bitsandbytes", "load_in_8bit": True}, eight_bit_rows),
}


def drawn_tensors(config: Mapping[str, Any], draw: np.random.Generator) -> dict[str, Numbers]:
    """Every published tensor of a config, of random numbers."""
    with torch.device("meta"):
        shapes = published_shapes(network_of(ModelConfig.from_published(config)))
    return {name: (draw.normal(0, 0.1, shape) + (len(shape) == 1)).astype(np.float32) for name, shape in shapes.items()}


def write_pair(
    form: Form,
    config: Mapping[str, Any],
    small: Path,
    wide: Path,
    modules: Callable[[str], list[str]] | None = None,
    plain: tuple[str, ...] = ("embed", "wte", "lm_head", "ff_out_head", "router", ".gate.weight"),
    seed: int = 0,
) -> None:
    """Write a packed folder and the plain one of its numbers. modules: where the matrices of a published tensor of
    experts are: one name (of a stack), or one for each expert, or, of gate and up, two for each; None: one module a
    tensor. plain: names with this in them stay as they are."""
    draw = np.random.default_rng(seed)
    held, packed = drawn_tensors(config, draw), dict[str, Tensor]()
    for name, values in held.items():
        if (
            values.ndim < 2
            or any(part in name for part in plain)
            or not any(f".{one}." in name for one in ("layers", "blocks", "self_conditioning"))
        ):
            packed[name] = as_tensor(values)
        elif values.ndim == 2:
            tensors, held[name] = form.pack(values.shape, draw)
            packed |= named(name.removesuffix(".weight"), tensors)
        else:
            packed |= experts(form, name, held, draw, (modules or (lambda one: [one]))(name))
    for folder, tensors, more in ((small, packed, form.said), (wide, {k: as_tensor(v) for k, v in held.items()}, {})):
        folder.mkdir(parents=True, exist_ok=True)
        save_file({key: one.contiguous() for key, one in tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**config, **more}))


def named(module: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By their names in a file. bitsandbytes' begin with the name of the weight."""
    return {
        f"{module}.weight{leaf}" if leaf[:1] in ("", ".") else f"{module}.{leaf}": one for leaf, one in tensors.items()
    }


def experts(
    form: Form, name: str, held: dict[str, Numbers], draw: np.random.Generator, modules: list[str]
) -> dict[str, Tensor]:
    """A tensor [E, N, D] packed as ``modules`` say, and ``held`` changed to what it stands for."""
    count, rows, columns = held[name].shape
    parts = len(modules) // count if len(modules) >= count else len(modules)
    made = [[form.pack((rows // parts, columns), draw) for _ in range(parts)] for _ in range(count)]
    held[name] = np.stack([np.concatenate([wide for _, wide in group]) for group in made])
    if len(modules) >= count:
        flat = [tensors for group in made for tensors, _ in group]
        return {
            key: one
            for module, tensors in zip(modules, flat, strict=True)
            for key, one in named(module, tensors).items()
        }
    return {
        f"{module}.{leaf}": torch.stack([group[at][0][leaf] for group in made])
        for at, module in enumerate(modules)
        for leaf in made[0][at][0]
    }
