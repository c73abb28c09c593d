"""GPUs that are not there: tensors hold real numbers on the CPU and say that they are on ``cuda:0`` or ``cuda:1``.

``FakeGPUs`` is a mode that sees every call of torch's. It keeps a device on every tensor, answers with it, and refuses
what CUDA refuses. Since the numbers are real, whole decodes run, whatever they ask the device, and their tokens can be
compared with those of the CPU. PyTorch's FakeTensorMode has no numbers, so it runs only what asks nothing.
``test_devices`` shows that both refuse the same calls, but for one: an index on the CPU, which CUDA copies
over in silence, is a mistake here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dllm.parts import Transformer, spread_over_devices
from dllm.parts import device_of as home_of

CPU, GPU, SECOND = torch.device("cpu"), torch.device("cuda:0"), torch.device("cuda:1")
FROM_DATA = ("tensor", "as_tensor", "asarray", "new_tensor")  # make a tensor of what lies in the host's memory
SPECIAL = {*FROM_DATA, "__get__", "__set__", "to", "cuda", "cpu", "numpy", "__array__", "__setitem__", "copy_", "where",
           "__getitem__", "zeros_like", "ones_like", "empty_like", "full_like"}  # fmt: skip
SPELT = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "truediv": "div", "rdiv": "div",
         "floordiv": "floor_divide", "rfloordiv": "floor_divide", "rsub": "sub", "rpow": "pow", "iand": "bitwise_and",
         "ior": "bitwise_or", "ixor": "bitwise_xor", "invert": "bitwise_not"}  # fmt: skip


class WrongDevice(RuntimeError):
    """A call that CUDA would refuse, or an index on another device."""


def place_of(tensor: Tensor) -> torch.device:
    """Where a tensor pretends to be."""
    return getattr(tensor, "_place", CPU)


def put(tensor: Tensor, place: torch.device) -> Tensor:
    """The tensor itself, from now on at ``place``."""
    tensor._place = place  # type: ignore[attr-defined]
    return tensor


def device_of(name: Any) -> torch.device:
    """torch's device of a name or number, with its index: ``cuda`` is cuda:0."""
    found = torch.device("cuda", name) if type(name) is int else torch.device(name)
    return torch.device("cuda", 0) if found.type == "cuda" and found.index is None else found


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        return [value]
    if type(value) is dict:
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    found = []
    for entry in value:
        if isinstance(entry, Tensor):
            found.append(entry)
        elif isinstance(entry, tuple | list | dict):
            found += tensors_in(entry)
    return found


@cache
def elementwise(name: str) -> bool:
    """Whether an operation works entry by entry: CUDA lets a number on the CPU (no dimensions) join those alone."""
    name = name.strip("_")
    packet = getattr(torch.ops.aten, SPELT.get(name, name), None)
    tagged = packet is not None and any(
        torch.Tag.pointwise in getattr(packet, kind).tags for kind in packet.overloads()
    )
    return tagged or name in ("where", "masked_fill", "clamp_min", "clamp_max")


def common_place(name: str, tensors: list[Tensor]) -> torch.device:
    """Where an operation on ``tensors`` runs. Raises WrongDevice if they lie on several devices."""
    if not tensors:
        return CPU
    first = place_of(tensors[0])
    if len(tensors) == 1 or all(place_of(one) == first for one in tensors):
        return first
    counted = {place_of(one) for one in tensors if place_of(one) != CPU or one.dim() or not elementwise(name)}
    inplace = name.endswith("_") and not name.startswith("__")
    if len(counted) > 1 or (inplace and place_of(tensors[0]) not in counted):
        shapes = ", ".join(f"{list(one.shape)} on {place_of(one)}" for one in tensors)
        raise WrongDevice(f"{name} of tensors on several devices: {shapes}")
    return counted.pop()


class FakeGPUs(TorchFunctionMode):
    """copies: functions of ours that copied from the host to a GPU within a turn, neither before the first (``start``)
    nor to watch it (``observe``); moves: those that moved a tensor from one GPU to another, with its shape."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[str] = []
        self.moves: list[tuple[str, tuple[int, ...]]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__name__
        if name not in SPECIAL and not kwargs and not name.startswith("new_"):  # most calls
            return self._marked(func(*args), common_place(name, tensors_in(args)))
        kwargs = dict(kwargs or {})
        if name == "__get__":
            return self._read(func, args)
        if name in ("to", "cuda", "cpu") and isinstance(args[0], Tensor):
            return self._move(name, func, args, kwargs)
        if kwargs.get("device") is not None or name in FROM_DATA:
            return self._make(name, func, args, kwargs)
        if name in ("numpy", "__array__") and place_of(args[0]) != CPU:
            raise TypeError(f"can't convert {place_of(args[0])} device type tensor to numpy")
        if name in ("__setitem__", "copy_", "__set__"):
            return self._write(name, func, args, kwargs)
        if name == "__getitem__":
            self._listed(args)
        if name.endswith("_like") or name.startswith("new_"):
            return self._marked(func(*args, **kwargs), place_of(args[0]))
        place = common_place(name, tensors_in(args) + tensors_in(kwargs))
        if name == "where" and place != CPU:
            self._scalars(args)
        return self._marked(func(*args, **kwargs), place)

    def _read(self, func: Any, args: tuple[Any, ...]) -> Any:
        attribute, place = func.__self__.__name__, place_of(args[0])
        if place == CPU:
            return func(*args)
        known = {"device": place, "is_cuda": True, "is_cpu": False}
        return known[attribute] if attribute in known else self._marked(func(*args), place)

    def _move(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        named = {"cpu": [CPU], "cuda": [*args[1:], kwargs.pop("device", GPU)]}.get(name)
        rest = [] if named else [*args[1:], kwargs.pop("device", None), kwargs.pop("other", None)]
        places = [one for one in rest if isinstance(one, torch.device | str) or type(one) is int]
        places += [place_of(one) for one in rest if isinstance(one, Tensor)] + (named or [])[:1]
        kinds = [one for one in rest if isinstance(one, torch.dtype)] + [
            one.dtype for one in rest if isinstance(one, Tensor)
        ]
        source = place_of(args[0])
        target = device_of(places[0]) if places else source
        if "meta" in (target.type, args[0].untyped_storage().device.type):
            return func(*args, **kwargs)
        moved = args[0].to(kwargs.get("dtype") or (kinds or [args[0].dtype])[0])
        if kwargs.get("copy") or (target != source and moved is args[0]):
            moved = moved.clone()
        self._note(source, target, moved)
        return put(moved, target)

    def _make(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Tensors made at a place that the call names, or of data."""
        given, named = (args or (kwargs.get("data"),))[0 if name != "new_tensor" else 1], kwargs.pop("device", None)
        source = place_of(given) if isinstance(given, Tensor) else CPU
        if name in FROM_DATA:
            own = place_of(args[0]) if name == "new_tensor" else source
            target = own if named is None else device_of(named)
            self._note(source, target, None)
        else:
            target = device_of(named)
        made = func(*args, **kwargs)
        return self._marked(made.clone() if made is given and target != source else made, target)

    def _write(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What may copy between devices: assignment, and ``copy_``. An index must be where it is used."""
        into, value = args[0], (kwargs.get("src") if len(args) == 1 else args[-1])
        if name == "__setitem__":
            indexed = tensors_in(args[:2])
            common_place(name, indexed)
            self._listed(args[:2])
            if len(indexed) > 1 and isinstance(value, Tensor) and value.dim():
                common_place(name, [into, value])
            if any(one.dtype != torch.bool for one in indexed[1:]) and not isinstance(value, Tensor):
                self._note(CPU, place_of(into), None)  # a number that an index assigns is copied
        if name == "__set__" and isinstance(value, Tensor):
            put(into, place_of(value))
        elif isinstance(value, Tensor):
            self._note(place_of(value), place_of(into), value)
        return func(*args, **kwargs)

    def _scalars(self, args: tuple[Any, ...]) -> None:
        """``where`` copies a number that is a tensor on the CPU to the device, and waits for it."""
        for one in tensors_in(args):
            self._note(place_of(one), GPU if place_of(one) == CPU else place_of(one), one)

    def _listed(self, args: tuple[Any, ...]) -> None:
        """An index that is a list of numbers is copied to the device first."""
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if any(isinstance(one, list) for one in index):
            self._note(CPU, place_of(args[0]), None)

    def _marked(self, result: Any, place: torch.device) -> Any:
        if place is CPU:
            return result
        if type(result) is Tensor:
            return put(result, place)
        for tensor in tensors_in(result):
            put(tensor, place)
        return result

    def _note(self, source: torch.device, target: torch.device, tensor: Tensor | None) -> None:
        if source == target or target == CPU:
            return
        places, frame = list[str](), sys._getframe(1)
        while frame is not None:
            file, name = frame.f_code.co_filename, frame.f_code.co_name
            if "/dllm/" in file or "/accelerate/" in file:
                places.append(f"{file.rpartition('/dllm/')[2]}:{name}")
            frame = frame.f_back  # type: ignore[assignment]
        if source == CPU and not any(place.endswith((":start", ":of", ":observe")) for place in places):
            self.copies.append(places[0] if places else "a test")
        elif source != CPU:
            self.moves.append((places[0] if places else "a test", () if tensor is None else tuple(tensor.shape)))


def parameter(cls: type, data: Tensor, requires_grad: bool = True, make: Any = nn.Parameter.__new__) -> Tensor:
    """``nn.Parameter(data)``, which no mode sees, where the data is; in place of ``nn.Parameter.__new__``."""
    return put(make(cls, data, requires_grad), place_of(data))


def placed(model: Transformer, placement: Mapping[str, Any]) -> Transformer:
    """A copy of the model whose parameters pretend to be where ``placement`` says, as accelerate would put them."""
    copy = deepcopy(model)
    for one in copy.rotations:
        one.tables.clear()
    for name, parameter in copy.named_parameters():
        put(parameter, device_of(home_of(name, placement)))
    spread_over_devices(copy, placement)
    return copy
