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
    told_by: str  # the tensor that shows that the module is packed
    taken: list[StoredTensor] = field(default_factory=list)  # what was

    def take(self, leaf: str) -> StoredTensor | None:
        """A tensor of the module; None: it has no such one."""
        found = self.tensors.pop(f"{self.name}.{leaf}", None)
        self.taken += [] if found is None else [found]
        return found

    def need(self, leaf: str) -> StoredTensor:
        """The same of a name that begins with the module's. Raises UserError where it is missing."""
        if (found := self.tensors.pop(f"{self.name}{leaf}", None)) is None:
            raise broken(f"tensor {printed(self.name)}{leaf} is missing beside the others of bitsandbytes")
        self.taken.append(found)
        return found


def check_tensor(one: StoredTensor, shape: tuple[int, ...], dtypes: Collection[str], said: str) -> None:
    """Raise UserError for a tensor of another shape, or kind, than what is ``said`` implies."""
    if one.shape != shape:
        raise broken(f"tensor {printed(one.name)} has shape {list(one.shape)}, {said} implies {list(shape)}")
    if one.dtype not in dtypes:
        raise broken(f"tensor {printed(one.name)} is stored as {one.dtype}, {said} implies {' or '.join(dtypes)}")
