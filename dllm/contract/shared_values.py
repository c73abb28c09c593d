"""What a part gives to all rows alike: tables, the weights of a filter, a second network."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Module

from dllm.common.errors import Refusal, TooLarge, name_of


class Shared:
    """What all rows share, by name, on the device of the model. It is moved there once for each model, and no row has
    a copy: rows leave and join without it. Its memory is fixed while turns are recorded.
    """

    def __init__(self, values: Mapping[str, Tensor | Module]) -> None:
        self._values = values

    @staticmethod
    def of(values: Mapping[str, Tensor | Module], device: torch.device, who: str) -> Shared:
        """What a part returned from ``shared``, on the ``device``. A network that is elsewhere, or in training, is
        copied; the part's own stays as it is. who: the part, for the message. Raises UserError for what is neither a
        tensor nor a module, TooLarge for what does not fit onto the device."""
        if not isinstance(values, Mapping):
            raise Refusal(f"{who}: shared() returned {type(values).__name__}, and must return a dict by name.")
        for name, value in values.items():
            if not isinstance(value, Tensor | Module):
                kind = type(value).__name__
                raise Refusal(f"{who}: shared()[{name!r}] is {kind}, and must be a tensor or a torch.nn.Module.")
        try:
            return Shared({name: _moved(value, device) for name, value in values.items()})
        except torch.OutOfMemoryError:
            size = sum(tensor.nbytes for value in values.values() for tensor in _tensors(value))
            raise TooLarge(
                f"{who}: the {size / 2**20:.0f} MiB that all rows share do not fit into the memory of {device} beside "
                "the model's weights. Use a smaller model, or another sampler."
            ) from None

    def tensor(self, name: str) -> Tensor:
        """The tensor of this name. Raises KeyError for one that the part did not give, TypeError for a module."""
        value = self._values[name]
        if not isinstance(value, Tensor):
            raise TypeError(f"shared {name!r} is a {type(value).__name__}: read it by module().")
        return value

    def module(self, name: str) -> Module:
        """The network of this name, as ``tensor``."""
        value = self._values[name]
        if not isinstance(value, Module):
            raise TypeError(f"shared {name!r} is a {type(value).__name__}: read it by tensor().")
        return value

    def inside(self, prefix: str) -> Shared:
        """What the part inside gave: the names that begin with ``prefix``, without it."""
        values = {name.removeprefix(prefix): value for name, value in self._values.items() if name.startswith(prefix)}
        return Shared(values) if values else NOTHING_SHARED


NOTHING_SHARED = Shared({})


class Sharing(Protocol):
    """A part that gives something to all rows (``dllm.parts.samplers.base.Sampler``)."""

    def shared(self) -> Mapping[str, Tensor | Module]: ...


def shared_by(sampler: Sharing, device: torch.device) -> Shared:
    """What a sampler gives to all rows, on the ``device``. Raises as ``Shared.of``."""
    return Shared.of(sampler.shared(), device, f"{{sampler={name_of(sampler)}}}")


def _moved(value: Tensor | Module, device: torch.device) -> Tensor | Module:
    if isinstance(value, Tensor):
        return value.to(device)
    if not value.training and all(tensor.device == device for tensor in _tensors(value)):
        return value
    return deepcopy(value).to(device).eval()


def _tensors(value: Tensor | Module) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [*value.parameters(), *value.buffers()]
