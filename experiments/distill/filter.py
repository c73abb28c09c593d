"""Train a Learn2PD filter: ``python -m experiments.distill.filter model=mini-llada block_length=32``.

Options and their defaults are the fields of ``Options``; ``prompts=FILE`` takes the prompts of a JSON-lines file (one
{"prompt": ...} per line) instead of training items of the mini suite. Recipe of arXiv 2509.25188: decode one token per
step, replay committing at once whatever already equals that answer, and learn from the confidences of every block
which positions were right.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from safetensors.torch import save_file
from torch import Tensor

from dllm import Decoder, Model, UserError, load
from dllm.common.errors import in_words
from dllm.contract import Need, State, Step, Turn, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.blocks.fixed import Fixed
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.learn2pd import WEIGHTS
from dllm.parts.samplers.static import Static
from dllm.prompts import Prompt
from dllm.tasks.mini import tasks as mini
from experiments.support.scripts import refusing


@dataclass
class Options:
    """model: name or folder; gen_length: a multiple of block_length (0: one block); count: prompts per task of the mini
    suite; epochs: full-batch steps; out: the file to write."""

    model: str = "mini-llada"
    block_length: int = 32
    gen_length: int = 0
    prompts: str = ""
    count: int = 80
    epochs: int = 4000
    learning_rate: float = 3e-3
    batch_size: int = 52
    seed: int = 0
    device: str = "cpu"
    threads: int = 1
    out: str = ""

    @staticmethod
    def of(arguments: Sequence[str]) -> Options:
        """Raises UserError for what is not an option, or no value of its kind."""
        kinds = {entry.name: type(getattr(Options(), entry.name)) for entry in fields(Options)}
        given: dict[str, object] = {}
        for argument in arguments:
            name, _, value = argument.removeprefix("--").partition("=")
            if name not in kinds or not value:
                raise UserError(f"{argument!r} is not an option; write NAME=VALUE with one of {', '.join(kinds)}.")
            try:
                given[name] = kinds[name](value)
            except ValueError:
                raise UserError(f"{name}={value!r} must be a number.") from None
        options = Options(**given)  # type: ignore[arg-type]
        options.gen_length = options.gen_length or options.block_length
        if options.block_length < 1 or options.gen_length % options.block_length:
            raise UserError(
                f"gen_length={options.gen_length} must be a multiple of block_length={options.block_length}."
            )
        return options


class Replay(Sampler):
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
        token, block = view.scores.token, within(view)
        again = ((token == state["before"]) | ~block).all(1) & (state["block"] == view.blocks.index)
        commit = view.open & ((token == state["right"]) | again[:, None])
        return view.step(commit, tokens=state["right"], state={"before": token, "block": view.blocks.index})


def within(view: View) -> Tensor:
    """Columns of the current block [B, L]."""
    columns = view.canvas.columns
    return (columns >= view.blocks.begin[:, None]) & (columns < view.blocks.end[:, None])


@dataclass
class Records:
    """What the filter learns from: confidences of whole blocks, and which of their predictions were right. open: the
    positions that could still be committed."""

    reference: Sequence[Sequence[int]]
    length: int
    confidence: list[Tensor] = field(default_factory=list)
    right: list[Tensor] = field(default_factory=list)
    open: list[Tensor] = field(default_factory=list)

    def __call__(self, turn: Turn) -> None:
        view = turn.view
        for row, number in enumerate(view.canvas.param_index.tolist()):
            begin, start = int(view.blocks.begin[row]), int(view.canvas.start[row])
            place = slice(begin, begin + self.length)
            answer = torch.tensor(self.reference[number][begin - start : begin - start + self.length])
            self.confidence.append(view.scores.confidence[row, place].float().cpu())
            self.right.append((view.scores.token[row, place].cpu() == answer).float())
            self.open.append(view.open[row, place].cpu())


def prompts_of(options: Options) -> list[Prompt]:
    if not options.prompts:
        items = [mini.generate(task, options.seed + 1000, options.count, "train") for task in mini.SHORT_ANSWERS]
        return [sample.messages for task in items for sample in task]
    try:
        lines = [json.loads(line) for line in Path(options.prompts).read_text().splitlines() if line.strip()]
        return [line["prompt"] for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        rule = f'must hold one {{"prompt": ...}} per line ({in_words(error)})'
        raise UserError(f"prompts={options.prompts!r} {rule}.") from error


def reference_of(model: Model, options: Options, prompts: Sequence[Prompt]) -> list[list[int]]:
    """What one token per step decodes, which is what counts as right."""
    rows = decoder(model, Static(), options).iterate(prompts)
    return [row.canvas for row in track(rows, "one token per step", len(prompts), console=Console(stderr=True))]


def records_of(
    model: Model, rule: Sampler, options: Options, prompts: Sequence[Prompt], reference: Sequence[Sequence[int]]
) -> Records:
    """Every turn of ``rule`` on the prompts."""
    records = Records(reference, options.block_length)
    rows = decoder(model, rule, options).iterate(prompts, observe=records)
    for _ in track(rows, "records", len(prompts), console=Console(stderr=True)):
        pass
    return records


def decoder(model: Model, rule: Sampler, options: Options) -> Decoder:
    return Decoder(
        model, rule, Fixed(options.block_length), eos="none", gen_length=options.gen_length,
        batch_size=options.batch_size,
    )  # fmt: skip


def record(model: Model, options: Options) -> tuple[Tensor, Tensor]:
    """Confidences [n, block_length] and what was right [n, block_length], in a seeded random order."""
    prompts = prompts_of(options)
    reference = reference_of(model, options, prompts)
    records = records_of(model, Replay(reference), options, prompts, reference)
    order = torch.randperm(len(records.right), generator=torch.Generator().manual_seed(options.seed))
    return torch.stack(records.confidence)[order], torch.stack(records.right)[order]


def logits(weights: Mapping[str, Tensor], confidence: Tensor) -> Tensor:
    hidden = F.relu(F.linear(confidence, weights["linear1.weight"], weights["linear1.bias"]))
    return F.linear(hidden, weights["linear2.weight"], weights["linear2.bias"])


def train(confidence: Tensor, right: Tensor, options: Options) -> dict[str, Tensor]:
    """Full-batch AdamW on binary cross entropy over all positions."""
    torch.manual_seed(options.seed)
    layers = [torch.nn.Linear(options.block_length, options.block_length) for _ in range(2)]
    weights = dict(zip(WEIGHTS, (p for layer in layers for p in layer.parameters()), strict=True))
    optimizer = torch.optim.AdamW(weights.values(), lr=options.learning_rate)
    for _ in track(range(options.epochs), "training", console=Console(stderr=True)):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(logits(weights, confidence), right).backward()
        optimizer.step()
    return {name: tensor.detach() for name, tensor in weights.items()}


def report(weights: dict[str, Tensor], confidence: Tensor, right: Tensor, threshold: float = 0.96) -> str:
    """How the filter does on records it has not seen."""
    found = logits(weights, confidence)
    loss = F.binary_cross_entropy_with_logits(found, right)
    chosen = found.sigmoid() > threshold
    wrong = ((right == 0) & chosen).sum() / chosen.sum().clamp(min=1)
    taken = ((right == 1) & chosen).sum() / (right == 1).sum().clamp(min=1)
    return f"loss {loss:.4f}; above {threshold}: {100 * taken:.1f} % of the right ones, {100 * wrong:.2f} % wrong"


def fit(model: Model, confidence: Tensor, right: Tensor, options: Options) -> None:
    """Train on eight records of ten, print how the filter does on the others, and write it."""
    at, end = int(0.8 * len(right)), int(0.9 * len(right))
    weights = train(confidence[:at], right[:at], options)
    for name, part in (("validation", slice(at, end)), ("test", slice(end, None))):
        print(f"{name}: {report(weights, confidence[part], right[part])}")
    out = Path(options.out or f"{model.name}-b{options.block_length}.safetensors")
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, out, {"model": model.name, "block_length": str(options.block_length)})
    print(f"{out}: trained on {at} records; use it with sampler=learn2pd sampler.filter={out}")


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(given):
        print(__doc__, "\n\n", Options.__doc__, "\n\n", Options(), sep="")
        return 0
    options = Options.of(given)
    torch.set_num_threads(options.threads)
    model = load(options.model, device=options.device)
    fit(model, *record(model, options), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
