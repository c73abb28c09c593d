"""The tensors of a module that another program has packed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from dllm.models.formats.packing import Part
from dllm.models.keys import printed
from dllm.models.weights.files import StoredTensor, broken


@dataclass
class Module:
    """A module whose tensors an operation takes out of those of its folder."""

    name: str  # of the module
    tensors: dict[str, StoredTensor]  # of the folder; what is taken goes
    part: Part  # reads them
    sign: str  # the tensor that shows that the module is packed
    sources: list[StoredTensor] = field(default_factory=list)  # what was

    def take(self, leaf: str) -> StoredTensor | None:
        """A tensor of the module; None: it has no such one."""
        tensor = self.tensors.pop(f"{self.name}.{leaf}", None)
        self.sources += [] if tensor is None else [tensor]
        return tensor

    def need(self, leaf: str) -> StoredTensor:
        """The same of a name that begins with the module's. Raises UserError where it is missing."""
        if (tensor := self.tensors.pop(f"{self.name}{leaf}", None)) is None:
            raise broken(f"tensor {printed(self.name)}{leaf} is missing beside the others of bitsandbytes")
        self.sources.append(tensor)
        return tensor


def check_tensor(tensor: StoredTensor, shape: tuple[int, ...], dtypes: Collection[str], reason: str) -> None:
    """Raise UserError for a tensor of another shape, or dtype, than ``reason`` implies."""
    if tensor.shape != shape:
        raise broken(f"tensor {printed(tensor.name)} has shape {list(tensor.shape)}, {reason} implies {list(shape)}")
    if tensor.dtype not in dtypes:
        raise broken(
            f"tensor {printed(tensor.name)} is stored as {tensor.dtype}, {reason} implies {' or '.join(dtypes)}"
        )
