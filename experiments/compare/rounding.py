"""What rounding weights costs: ``python -m experiments.compare.rounding`` (two minutes and a half).

Prints Markdown tables. One for each model has the kinds of ``model.quantize`` and ``model.quantize_head`` as they are
loaded, and other ways to round to four bits, whose weights are widened again to float32: the error of the logits and
how often the best token agrees, both against float32 on half-masked answers, and the score of held-out items. ``rows``
is ``model.activations``. Two more have errors alone: of weights, on distributions like those of published weights, and
of products whose rows are rounded, with outliers planted among their numbers.

Least squares: of 21 scales around that of the extremes the one whose steps, with scale and minimum fitted to them,
leave the least squared error (llama.cpp's ``make_qkx2_quants``). Calibrated: columns weighed by the mean square of
their inputs, on other items.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dllm import Model, load
from dllm.kernels import rounded_rows as row_rounding
from dllm.kernels.rounded_machine import ROW_LEVELS
from dllm.models.network.transformer import Transformer
from dllm.prompts import Prompt
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.mini.decoders import decoder
from experiments.support import markdown
from experiments.support.held_out import answered, comparison
from experiments.support.scripts import refusing

KINDS = (None, "int8", "int4")
HEADS = (("int8", "int8"), ("int4", "int8"), ("int4", "int4"))  # kinds of the layers, and of embedding and head
LENGTH, BATCH = 32, 16
Rounding = Callable[[Tensor, Tensor], Tensor]  # groups [N, G, n] and the weight of each column [G, n] -> as rounded


def symmetric(groups: Tensor, columns: Tensor) -> Tensor:
    """A scale alone: steps from -7 to 7."""
    scale = (groups.abs().amax(-1, keepdim=True) / 7).clamp_min(1e-30)
    return (groups / scale).round() * scale


def extremes(groups: Tensor, columns: Tensor) -> Tensor:
    """Scale and minimum: 16 steps from the least to the largest."""
    low, high = groups.aminmax(dim=-1, keepdim=True)
    scale = ((high - low) / 15).clamp_min(1e-30)
    return ((groups - low) / scale).round() * scale + low


def least_squares(groups: Tensor, columns: Tensor, calibrated: bool = False) -> Tensor:
    """See the file's head. Scale and minimum solve the two normal equations of steps and ones."""
    weight = columns.expand_as(groups) if calibrated else torch.ones_like(groups)
    low, high = groups.aminmax(dim=-1, keepdim=True)
    best, least = groups, torch.full_like(low, torch.inf)
    for levels in torch.linspace(13.5, 16.5, 21).tolist():
        steps = ((groups - low) / ((high - low) / levels).clamp_min(1e-30)).round().clamp(0, 15)
        total, s, ss, w, sw = (
            (weight * one).sum(-1, keepdim=True)
            for one in (torch.ones_like(groups), steps, steps**2, groups, steps * groups)
        )
        spread = (total * ss - s * s).clamp_min(1e-30)
        found = (total * sw - w * s) / spread * steps + (ss * w - s * sw) / spread
        error = (weight * (found - groups) ** 2).sum(-1, keepdim=True)
        best, least = torch.where(error < least, found, best), torch.minimum(error, least)
    return best


ROUNDINGS: Mapping[str, tuple[Rounding, int]] = {  # and the columns of a group
    "scale, 128 columns": (symmetric, 128),
    "scale, 32": (symmetric, 32),
    "scale and minimum, 128": (extremes, 128),
    "scale and minimum, 32 (`int4`)": (extremes, 32),
    "least squares, 128": (least_squares, 128),
    "least squares, 32": (least_squares, 32),
    "least squares, calibrated, 32": (partial(least_squares, calibrated=True), 32),
}


def products(model: Transformer) -> dict[str, nn.Linear]:
    """The products that ``model.quantize`` narrows."""
    return {name: one for name, one in model.layers.named_modules() if type(one) is nn.Linear}


def canvases(model: Model, items: Sequence[Sample]) -> list[Tensor]:
    """Prompt and answer [1, L] of each item, of the answer a share masked that is drawn for each."""
    prompts: list[Prompt] = [item.messages for item in items]
    draw, found = torch.Generator().manual_seed(0), []
    for result in decoder(model, (), LENGTH, BATCH)(prompts):
        answer = torch.tensor(result.tokens)
        masked = torch.rand(len(answer), generator=draw) < torch.rand(1, generator=draw)
        answer[masked] = model.ids.placeholder
        found.append(torch.cat([torch.tensor(result.prompt_tokens), answer])[None])
    return found


@torch.inference_mode()
def logits(model: Transformer, rows: Sequence[Tensor]) -> Tensor:
    """[rows, V] of the answers."""
    return torch.cat([model.logits(model.encode(one))[0, -LENGTH:] for one in rows])


def mean_squares(model: Transformer, rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """Of the inputs of each product, by column [D]."""
    found: dict[str, list[Tensor]] = {}
    hooks = [
        one.register_forward_pre_hook(
            lambda _, given, name=name: found.setdefault(name, []).append(given[0].flatten(0, -2).square().mean(0))
        )
        for name, one in products(model).items()
    ]
    logits(model, rows)
    for hook in hooks:
        hook.remove()
    return {name: torch.stack(parts).mean(0) for name, parts in found.items()}


def score(model: Model, items: Sequence[Sample]) -> list[float]:
    return answered(decoder(model, (), LENGTH, BATCH), items)[1]


def rounded(name: str, how: Rounding, size: int, inputs: Mapping[str, Tensor]) -> Model:
    model = load(name, pack=False)
    for key, one in products(model.transformer).items():
        groups = one.weight.detach().unflatten(-1, (-1, size))
        one.weight = nn.Parameter(how(groups, inputs[key].view(-1, size)).flatten(1), requires_grad=False)
    return model


def model_rows(name: str, count: int, seed: int) -> Iterator[list[str]]:
    """The cells of a model: one list for each kind and rounding."""
    items, others = (
        [item for task in mini.TASKS for item in mini.generate(task, drawn, count)] for drawn in (seed, seed + 6)
    )
    plain = load(name, pack=False)
    rows = canvases(plain, items)
    expected, inputs = logits(plain.transformer, rows), mean_squares(plain.transformer, canvases(plain, others))
    kinds = {kind or "bfloat16": partial(load, name, dtype="bfloat16", quantize=kind) for kind in KINDS}
    for kind in KINDS[1:]:
        kinds[f"{kind}, rows int8"] = partial(load, name, dtype="bfloat16", quantize=kind, activations="int8")
    for kind, head in HEADS:
        kinds[f"{kind}, head {head}"] = partial(load, name, dtype="bfloat16", quantize=kind, quantize_head=head)
    ways = {label: partial(rounded, name, *way, inputs) for label, way in ROUNDINGS.items()}
    yield ["float32", "0", "100", markdown.percent(score(plain, items))]
    for label, made in [*kinds.items(), *ways.items()]:
        model = made()
        found = logits(model.transformer, rows)
        error = (found - expected).norm() / (expected - expected.mean(-1, keepdim=True)).norm()
        same = fmean((found.argmax(-1) == expected.argmax(-1)).float().tolist())
        yield [label, f"{100 * error:.1f}", f"{100 * same:.1f}", markdown.percent(score(model, items))]


def distributions() -> Iterator[tuple[str, Tensor]]:
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    yield "normal", draw(256, 4096)
    yield "Student's t of 5", draw(256, 4096) / draw(5, 256, 4096).square().mean(0).sqrt()
    columns = torch.ones(4096)
    columns[::100] = 6
    yield "normal, each 100th column sixfold", draw(256, 4096) * columns


def weight_rows() -> Iterator[list[str]]:
    weights = dict(distributions())
    for label, (how, size) in ROUNDINGS.items():
        if "calibrated" not in label:
            errors = []
            for one in weights.values():
                groups = one.unflatten(-1, (-1, size))
                errors.append(f"{100 * (how(groups, groups[0]) - groups).norm() / groups.norm():.1f}")
            yield [label, *errors]


def planted() -> Iterator[tuple[str, Tensor]]:
    """Rows [64, 4096]: normal numbers, those of a gate (silu of one times another), and normal ones with a column, or
    each row with a number of its own, that is larger."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    yield "normal", draw(64, 4096)
    yield "gate", F.silu(draw(64, 4096)) * draw(64, 4096)
    for factor in (10, 100, 1000):
        columns = torch.ones(4096)
        columns[7::1365] = factor
        yield f"3 columns {factor}-fold", draw(64, 4096) * columns
    rows = draw(64, 4096)
    rows[torch.arange(64), torch.arange(64) * 64] = 1000
    yield "a number of 1000", rows


def smoothed(rows: Tensor, weight: Tensor, most: int) -> Tensor:
    """SmoothQuant: columns divided by the root of their largest number over that of their weights, once rounded."""
    by = (rows.abs().amax(0) / weight.abs().amax(0)).sqrt().clamp_min(1e-6)
    given = rows / by
    scale = given.abs().amax(1, keepdim=True) / most
    return (given / scale).round() * scale @ (weight * by).t()


def once(rows: Tensor, weight: Tensor, most: int) -> Tensor:
    scale = rows.abs().amax(1, keepdim=True) / most
    return (rows / scale).round() * scale @ weight.t()


def shifted(rows: Tensor, weight: Tensor, most: int) -> Tensor:
    """With a zero point: steps from the least to the largest number."""
    low, high = rows.aminmax(dim=1, keepdim=True)
    scale = (high - low) / (2 * most)
    return (((rows - low) / scale).round() * scale + low) @ weight.t()


def ours(rows: Tensor, weight: Tensor, most: int) -> Tensor:
    return row_rounding.in_steps(rows, most).widened(rows.dtype) @ weight.t()


WAYS = {"once": once, "zero point": shifted, "smoothed": smoothed, "as here": ours}


def product_rows() -> Iterator[list[str]]:
    """Errors of products with normal weights, by how the rows are rounded, and how many rows are rounded twice."""
    weight = torch.randn(256, 4096, generator=torch.Generator().manual_seed(1))
    for label, rows in planted():
        exact = rows.double() @ weight.double().t()
        for most in ROW_LEVELS:
            errors = [f"{100 * (way(rows, weight, most) - exact).norm() / exact.norm():.2f}" for way in WAYS.values()]
            twice = len(row_rounding.in_steps(rows, most).again)
            yield [label, str(most), *errors, f"{100 * twice / len(rows):.0f}"]


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    given = comparison(__doc__, 16, "items per task").parse_args(arguments)
    for name in given.models:
        names = (f"{name}: weights", "error of logits, %", "top-1 agrees, %", "score, %")
        print(markdown.table(names, model_rows(name, given.count, given.seed)), "\n", flush=True)
    print(markdown.table(("error of the weights, %", *dict(distributions())), weight_rows()), "\n")
    columns = ("error of products, %: rows", "steps", *WAYS, "twice, % of rows")
    print(markdown.table(columns, product_rows()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
