"""Commit what a small trained filter judges to be right (Learn2PD, arXiv 2509.25188)."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from dllm.common.errors import Refusal, Set, in_range, in_words, name_of
from dllm.common.ranking import top_k_mask
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest
from dllm.contract.clash import Clash
from dllm.contract.setting import Setting, replaced
from dllm.parts.samplers.scheduled import Scheduled

FILTERS = Path(__file__).parents[2] / "models" / "filters"
WEIGHTS = ("linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias")


class Learn2PD(Scheduled):
    """Commit the open positions to which the filter gives a probability above ``threshold``, and those that the fixed
    schedule commits.

    The filter is two linear layers of the block's width with a ReLU between. It reads the confidences of all positions
    of the block, committed ones included, as one float32 vector padded with zeros, and returns a logit per position.
    ``filter`` is a safetensors file with the four tensors and the metadata ``model`` and ``block_length``; None: the
    filter that comes with the model. steps None: a quota of one position per forward.
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
              "models do not compare.", (), "Train a filter for it: python -m experiments.distill.filter model=NAME"),
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
        """The rule with the filter that comes with the model, for its block length, if none was named."""
        if not self.shipped:
            return self
        length = setting.blocks.fixed_length or setting.gen_length
        file = FILTERS / f"{setting.name}-b{length}.safetensors"
        if not file.is_file():
            raise Refusal(
                "{sampler} needs {sampler.filter:name}=FILE, a filter trained for this model ({model:value}) and block "
                "length ({length:value}).",
                {"sampler": name_of(self), "model": setting.name or "NAME", "length": length},
                note="Make one with: python -m experiments.distill.filter model={model:value} "
                "block_length={length:value}",
            )
        weights, trained = read_filter(file)
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
        due = top_k_mask(view.scores.confidence, view.open, self.due(view, state))
        return view.step(accepted | due, accepted=accepted)


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


def read_filter(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a filter's file. Raises UserError for any other file."""
    try:
        with safe_open(file, framework="pt") as stored:
            return {name: stored.get_tensor(name) for name in WEIGHTS}, stored.metadata() or {}
    except Exception as error:
        raise Refusal(f"{{sampler.filter:quoted}} is not a filter file ({in_words(error)}).", [str(file)]) from error
