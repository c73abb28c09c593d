"""What packed weights have in common, whichever program packed them: a config's words, and tensors of modules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from dllm.common.errors import Refusal, UserError
from dllm.models.formats.affine import WHOLE_AXIS, Scheme
from dllm.models.formats.expressions import expression
from dllm.models.formats.packing import Part
from dllm.models.formats.prequantized import QUANTISATION, UNQUANTISED
from dllm.models.keys import KeyRules, printed, quote, read_keys
from dllm.models.weights.files import StoredTensor, broken

EVERY_MODULE = "re:"  # names every module
_EMBEDDINGS = ("embed_tokens", "word_embeddings", "wte")


@dataclass(frozen=True)
class PackedSettings:
    """What is said of packed weights."""

    method: str  # gptq, awq, mlx, compressed-tensors, modelopt, fp8 or bitsandbytes
    statement: str  # that it is, as a sentence begins
    schemes: Mapping[str, Scheme]  # by a module's name, ``re:`` and an expression, or a class of modules
    ignored: tuple[str, ...] = ()  # modules that are plain, told in the same ways
    notes: tuple[str, ...] = ()  # sentences about settings of the file that are not applied
    subtracted: int = 0  # from zeros of GPTQ, of each number of a word
    symmetric: bool | None = None  # every zero of GPTQ is the middle step; None: not said
    ordered: bool = False  # columns of GPTQ may be in any group, as g_idx alone says

    @property
    def usual(self) -> Scheme:
        """Of a module that is not named."""
        return self.schemes[EVERY_MODULE]

    @property
    def group(self) -> int:
        """Columns with one scale, as files say it: -1 is all."""
        return -1 if self.usual.block[1] == WHOLE_AXIS else self.usual.block[1]

    def scheme_of(self, module: str) -> Scheme:
        """Of a module that has scales. Raises UserError for one that is said to be plain, and where none is said."""
        if any(_match(pattern, module) for pattern in self.ignored):
            raise Refusal(
                f"{QUANTISATION} has {printed(module)} in ignore, and the weights have scales for it. {UNQUANTISED}."
            )
        matches = [(match, target) for target in self.schemes if (match := _match(target, module))]
        if not matches:
            raise Refusal(f"{QUANTISATION} names no group for {printed(module)}, which has scales. {UNQUANTISED}.")
        return self.schemes[min(matches)[1]]


@dataclass(frozen=True)
class PackedPlace:
    """Where something is said of packed weights."""

    file: str  # that says it
    key: str  # of the file, under which it is
    method: str  # whose words it has

    def wrong(self, key: str, value: Any, rule: str) -> UserError:
        """The error for a value that is not read."""
        setting = f"{self.method} weights with {key}={quote(value)} in {self.key}"
        return Refusal(f"{self.file} has {setting}, which must be {rule} to be read. {UNQUANTISED}.")

    def read(self, rules: KeyRules, content: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of a table with their values. Raises UserError as ``wrong``."""
        return read_keys(rules, content, self.file, self.wrong)


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


def _match(target: str, module: str) -> int:
    """How a target names a module, the first that counts: 1 by its name, 2 by an expression, 3 by its class, 4 by the
    end of its name; 0: it does not. Equal ones count by the alphabet (compressed-tensors' match_targets, which
    knows the first three). A linear layer is any that has scales but an embedding."""
    if target.startswith("re:"):
        return 2 if expression(target[3:]).matches(module) else 0
    if target in ("Linear", "Embedding"):
        return 3 if module.endswith(_EMBEDDINGS) == (target == "Embedding") else 0
    return 1 if module in (target, f"model.{target}") else 4 if module.endswith(f".{target}") else 0
