"""Commit what a small trained filter judges to be right (Learn2PD, arXiv 2509.25188)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from dllm.common.cache_folder import cache_folder
from dllm.common.errors import Refusal, Set, UserError, in_range, in_words, name_of
from dllm.common.ranking import top_k_mask
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest
from dllm.contract.clash import Clash
from dllm.contract.setting import Setting, replaced
from dllm.models.fingerprint import fingerprint
from dllm.parts.samplers.scheduled import Scheduled

FILTERS = Path(__file__).parents[2] / "models" / "filters"
WEIGHTS = ("linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias")


class Learn2PD(Scheduled):
    """Commit the open positions to which the filter gives a probability above ``threshold``, and those that the fixed
    schedule commits.

    The filter is two linear layers of the block's width with a ReLU between. It reads the confidences of all positions
    of the block, committed ones included, as one float32 vector padded with zeros, and returns a logit per position.
    ``filter`` is a safetensors file with the four tensors and the metadata ``model`` and ``block_length``; None: what
    ``dllm train filter`` left for the checkpoint, or the filter that comes with the model. steps None: a quota of one
    position per forward.
    """

    per_request = ("threshold",)
    clashes = (
        *Scheduled.clashes,
        Clash(lambda c: (length := c.blocks.fixed_length) is not None and (
                  length > c.part.width or c.part.trained.get("block_length") not in (None, str(length)))
              and {"blocks.block_length": length},
              "{blocks.block_length} is not the {sampler.width:value} positions that {sampler.filter:name} was trained "
              "for.", [lambda c: Set("blocks.block_length", c.part.width)], "Or train a filter for this length."),
        Clash(lambda c: c.setting.name and c.part.trained.get("model") not in (None, c.setting.name)
              and {"theirs": c.part.trained["model"], "model": c.setting.name},
              "{sampler.filter:name} was trained on {theirs:value}, the model is {model:value}, and confidences of two "
              "models do not compare.", (), "Train a filter for it: dllm train filter MODEL"),
    )  # fmt: skip

    def __init__(
        self, filter: str | dict[str, Tensor] | None = None, threshold: PerRequest = 0.96, steps: int | None = None
    ) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        super().__init__(steps)
        if isinstance(filter, dict) and not set(WEIGHTS) <= filter.keys():
            raise Refusal(
                f"{{sampler.filter:quoted}} must be a file, or the tensors {', '.join(WEIGHTS)} by name.", [filter]
            )
        self.threshold = threshold
        self.shipped = filter is None  # ``resolved`` finds it, when the model is known
        if isinstance(filter, str):
            self.weights, self.trained = read_filter(Path(filter).expanduser())
        else:
            self.weights, self.trained = filter or {}, {}

    @property
    def width(self) -> int:
        return self.weights["linear1.weight"].shape[1]

    def resolved(self, setting: Setting) -> Learn2PD:
        """The rule with the model's filter for its block length, if none was named."""
        if not self.shipped:
            return self
        length = setting.blocks.fixed_length or setting.gen_length or 0
        weights, trained = filter_of_checkpoint(setting, length) or ({}, {})
        if not weights and (file := FILTERS / f"{setting.name}-b{length}.safetensors").is_file():
            weights, trained = read_filter(file)
        if not weights:
            raise Refusal(
                "{sampler} needs {sampler.filter:name}=FILE, a filter trained for this model ({model:value}) and block "
                "length ({length:value}).",
                {"sampler": name_of(self), "model": setting.name or "NAME", "length": length},
                note="Make one with: dllm train filter MODEL blocks.block_length={length:value}",
            )
        return replaced(self, weights=weights, trained=trained)

    def needs(self) -> tuple[Need, ...]:
        return (Need(committed=True),)

    def turns(self, canvas: Canvas) -> None:
        """None: the filter saves turns, and the scores decide how many."""

    def shared(self) -> dict[str, Tensor]:
        """The filter's weights and biases, as float64: in float32 the rounding of a product depends on how many rows
        there are."""
        return {name: tensor.double() for name, tensor in self.weights.items()}

    def step(self, view: View, state: State) -> Step:
        chance = right(view)
        accepted = view.open & (chance > state["threshold"][:, None])
        scheduled = top_k_mask(view.scores.confidence, view.open, self.quota(view, state))
        return view.step(accepted | scheduled, accepted=accepted)


def right(view: View) -> Tensor:
    """The filter's probability that each column's proposal is right [B, L], float64; zero outside the block."""
    begin, length = view.blocks.begin[:, None], view.open.shape[1]
    columns = begin + torch.arange(len(view.shared.tensor("linear1.bias")), device=begin.device)
    inside = columns < torch.minimum(view.blocks.end, view.canvas.end)[:, None]
    confidence = view.scores.confidence.gather(1, columns.clamp(max=length - 1)).masked_fill(~inside, 0.0).float()
    first, bias, second, last = map(view.shared.tensor, WEIGHTS)
    logits = F.linear(F.relu(F.linear(confidence.double(), first, bias)), second, last)  # [B, width]
    out = torch.zeros(len(logits), length + 1, dtype=torch.float64, device=logits.device)
    return out.scatter(1, torch.where(inside, columns, length), logits.sigmoid())[:, :-1]


def filter_beside(checkpoint: Path, length: int) -> Path:
    """The file of a checkpoint's filter. Neither loading nor fingerprints read files of this suffix."""
    name = f"learn2pd-b{length}.filter"
    return checkpoint / name if checkpoint.is_dir() else checkpoint.with_name(f"{checkpoint.stem}.{name}")


def filter_in_cache(checkpoint: Path, length: int) -> Path:
    """The same in the user's cache, by the checkpoint's fingerprint. Raises UserError for a user without a home."""
    return cache_folder() / "filters" / f"{fingerprint(checkpoint)}-learn2pd-b{length}.filter"


def filter_files(checkpoint: Path, length: int) -> Iterator[Path]:
    """The filters that a checkpoint may have. Its fingerprint, 13 s for an 8B model, is taken only where some
    checkpoint has a filter of this length in the cache."""
    beside = filter_beside(checkpoint, length)
    if beside.is_file():
        yield beside
    with suppress(UserError):
        if any((cache_folder() / "filters").glob(f"*-learn2pd-b{length}.filter")):
            cached = filter_in_cache(checkpoint, length)
            if cached.is_file():
                yield cached


def filter_of_checkpoint(setting: Setting, length: int) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """The filter that was trained for the checkpoint and the block length. Raises UserError where the only one is of
    other weights, or of another shape."""
    other: tuple[Path, str] | None = None
    if setting.path is None or not setting.path.exists():
        return None
    for file in filter_files(setting.path, length):
        weights, trained = read_filter(file)
        width, weights_of = weights["linear1.weight"].shape[1], trained.get("checkpoint")
        if width == length and weights_of == fingerprint(setting.path):
            return weights, {**trained, "model": setting.name}  # the folder may have another name now
        other = file, f"for blocks of {width}" if width != length else f"on other weights ({weights_of})"
    if other is None:
        return None
    raise Refusal(
        "{file:value} is beside the model, and was trained {what:value}.",
        {"file": str(other[0]), "what": other[1], "length": length},
        note="Train it again: dllm train filter MODEL blocks.block_length={length:value}; or delete it.",
        at="sampler.filter",
    )


def read_filter(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a filter's file. Raises UserError for any other file."""
    try:
        with safe_open(file, framework="pt") as stored:
            return {name: stored.get_tensor(name) for name in WEIGHTS}, stored.metadata() or {}
    except Exception as error:
        raise Refusal(f"{{sampler.filter:quoted}} is not a filter file ({in_words(error)}).", [str(file)]) from error
