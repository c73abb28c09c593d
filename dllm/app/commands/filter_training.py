"""Training Learn2PD's filter (arXiv 2509.25188): decode one token per step, replay committing at once whatever already
equals that answer, and learn from the confidences of every block which positions were right."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from dllm.common.atomic_write import whole_file
from dllm.contract import Need, State, Step, Turn, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.decoder import Decoder
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.learn2pd import WEIGHTS
from dllm.parts.samplers.static import Static
from dllm.prompts import Prompt

LEARNING_RATE = 3e-3  # of AdamW, as in the released notebook
STATE_SECONDS = 10  # of training, between two states on disk
RuleDecoder = Callable[[Sampler], Decoder]  # a decoder with a rule


class ReplayedAnswers(Sampler):
    """Commits what equals the reference; a block whose predictions repeat themselves is filled with the reference."""

    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=False)

    def __init__(self, reference: Sequence[Sequence[int]]) -> None:
        self.reference = reference

    def needs(self) -> tuple[Need, ...]:
        return (Need(committed=True),)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        right = canvas.tokens.clone()
        for row, number in enumerate(canvas.param_index.tolist()):
            start = int(canvas.start[row])
            answer = torch.tensor(self.reference[number], device=right.device)
            right[row, start : start + len(answer)] = answer
        return {"right": right, "before": torch.full_like(right, -1), "block": torch.zeros_like(canvas.start) - 1}

    def step(self, view: View, state: State) -> Step:
        token, columns = view.scores.token, view.canvas.columns
        outside = (columns < view.blocks.begin[:, None]) | (columns >= view.blocks.end[:, None])
        again = ((token == state["before"]) | outside).all(1) & (state["block"] == view.blocks.index)
        commit = view.open & ((token == state["right"]) | again[:, None])
        return view.step(commit, tokens=state["right"], state={"before": token, "block": view.blocks.index})


@dataclass
class Records:
    """What the filter learns from: confidences of whole blocks, and which of their predictions were right."""

    reference: Sequence[Sequence[int]]  # the answer to each prompt
    length: int  # of a block
    confidence: list[Tensor] = field(default_factory=list)  # of a block's columns [L], by forward and row
    right: list[Tensor] = field(default_factory=list)  # [L]: 1.0 where the likeliest token is the answer's

    def __call__(self, turn: Turn) -> None:
        view = turn.view
        for row, number in enumerate(view.canvas.param_index.tolist()):
            begin, start = int(view.blocks.begin[row]), int(view.canvas.start[row])
            place = slice(begin, begin + self.length)
            answer = torch.tensor(self.reference[number][begin - start : begin - start + self.length])
            self.confidence.append(view.scores.confidence[row, place].float().cpu())
            self.right.append((view.scores.token[row, place].cpu() == answer).float())


def filter_records(decoder: RuleDecoder, prompts: Sequence[Prompt], length: int) -> tuple[Tensor, Tensor]:
    """Confidences [n, length] and what was right [n, length], of blocks of ``length``."""
    reference = [row.canvas for row in decoder(Static()).iterate(prompts)]
    records = Records(reference, length)
    for _ in decoder(ReplayedAnswers(reference)).iterate(prompts, observe=records):
        pass
    return torch.stack(records.confidence), torch.stack(records.right)


def train_filter(
    confidence: Tensor, right: Tensor, epochs: int, seed: int, state: Path | None = None
) -> dict[str, Tensor]:
    """Full-batch AdamW on binary cross entropy over all positions. state: a file from which it goes on, if it is
    there, to the same weights."""
    torch.manual_seed(seed)
    width = right.shape[1]
    layers = [torch.nn.Linear(width, width) for _ in range(2)]
    weights = dict(zip(WEIGHTS, (p for layer in layers for p in layer.parameters()), strict=True))
    optimizer, epochs_done, last = torch.optim.AdamW(weights.values(), lr=LEARNING_RATE), 0, time.monotonic()
    if state is not None and state.is_file():
        epochs_done = restore(state, weights, optimizer)
    bar = tqdm(
        range(epochs_done, epochs),
        "training",
        epochs,
        initial=epochs_done,
        unit="epoch",
        leave=False,
        disable=state is None,
    )
    for epoch in bar:
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(filter_logits(weights, confidence), right).backward()
        optimizer.step()
        if state is not None and time.monotonic() - last > STATE_SECONDS:
            last = time.monotonic()
            with whole_file(state) as scratch:
                save_file(state_tensors(weights, optimizer), scratch, {"done": str(epoch + 1)})
    return {name: tensor.detach() for name, tensor in weights.items()}


def state_tensors(weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The weights, and what the optimizer keeps of each as ``NAME/KEY``."""
    moments = zip(weights, optimizer.state_dict()["state"].values(), strict=True)
    moment_tensors = {f"{name}/{key}": value for name, values in moments for key, value in values.items()}
    return {**{name: tensor.detach() for name, tensor in weights.items()}, **moment_tensors}


def restore(file: Path, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> int:
    """Set weights and optimizer as ``state_tensors`` had them. Returns how many epochs are done."""
    with safe_open(file, "pt") as state:
        tensors, epochs_done = {name: state.get_tensor(name) for name in state.keys()}, int(state.metadata()["done"])  # noqa: SIM118
    for name, tensor in weights.items():
        tensor.data.copy_(tensors.pop(name))
    moments: dict[str, dict[str, Tensor]] = {name: {} for name in weights}
    for place, value in tensors.items():
        name, _, key = place.partition("/")
        moments[name][key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": dict(enumerate(moments.values()))})
    return epochs_done


def filter_logits(weights: Mapping[str, Tensor], confidence: Tensor) -> Tensor:
    hidden = F.relu(F.linear(confidence, weights["linear1.weight"], weights["linear1.bias"]))
    return F.linear(hidden, weights["linear2.weight"], weights["linear2.bias"])


def filter_report(weights: Mapping[str, Tensor], confidence: Tensor, right: Tensor, threshold: float = 0.96) -> str:
    """How the filter does on records that it has not seen."""
    logits = filter_logits(weights, confidence)
    loss = F.binary_cross_entropy_with_logits(logits, right)
    is_above = logits.sigmoid() > threshold
    wrong = ((right == 0) & is_above).sum() / is_above.sum().clamp(min=1)
    recall = ((right == 1) & is_above).sum() / (right == 1).sum().clamp(min=1)
    return f"loss {loss:.4f}; above {threshold}: {100 * recall:.1f} % of the right ones, {100 * wrong:.2f} % wrong"


def fit_filter(
    confidence: Tensor, right: Tensor, epochs: int, seed: int, state: Path | None = None
) -> tuple[dict[str, Tensor], list[str]]:
    """The filter of eight records of ten in a seeded order, and how it does on the others."""
    order = torch.randperm(len(right), generator=torch.Generator().manual_seed(seed))
    confidence, right = confidence[order], right[order]
    at, end = int(0.8 * len(right)), int(0.9 * len(right))
    weights = train_filter(confidence[:at], right[:at], epochs, seed, state)
    parts = {"validation": slice(at, end), "test": slice(end, None)}
    return weights, [f"{name}: {filter_report(weights, confidence[part], right[part])}" for name, part in parts.items()]
