"""One way to decode a set of items, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from dllm import Decoder, Model, Result, part
from dllm.cache.base import Cache
from dllm.decoder import Observer
from dllm.eos.base import EndOfText
from dllm.prompts import Prompt
from dllm.samplers.base import Sampler
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample

BATCH, BLOCK, SEED = 52, 32, 1


def items_of(tasks: Sequence[str], count: int) -> list[Sample]:
    """So many held-out items of each task."""
    return [sample for task in tasks for sample in mini.generate(task, SEED, count)]


@dataclass(frozen=True)
class Run:
    """The results, and the score of each from 0 to 1."""

    rows: list[Result]
    right: list[float]

    @property
    def nfe(self) -> float:
        """Forwards of an item."""
        return fmean(row.nfe for row in self.rows)

    @property
    def queries(self) -> float:
        """Query rows of all forwards of an item."""
        return fmean(row.query_tokens for row in self.rows)

    def same(self, other: Run) -> list[float]:
        """1 for the items whose tokens are those of another run."""
        return [float(row.tokens == its.tokens) for row, its in zip(self.rows, other.rows, strict=True)]


def run(
    model: Model, items: Sequence[Sample], sampler: Sampler | str, length: int, *, block: int = BLOCK,
    cache: Cache | str = "none", eos: EndOfText | str = "fill_after_block", lead: str = "", trace: bool = False,
    observe: Observer | None = None,
) -> Run:  # fmt: skip
    """length: of the canvas. lead: given text before the answer, which is not scored. Raises UserError for parts that
    refuse each other."""
    blocks = part("blocks", "fixed", block_length=block)
    prompts: list[Prompt] = [item.messages for item in items]
    decoder = Decoder(model, sampler, blocks, cache, eos, gen_length=length, batch_size=BATCH)
    rows = decoder(prompts, trace=trace, observe=observe)
    pairs = zip(items, rows, strict=True)
    return Run(rows, [mini.score(item, row.text.strip().removeprefix(lead))["score"] for item, row in pairs])


def until_end(tokens: Sequence[int], ends: Sequence[int]) -> int:
    """How many tokens a text has."""
    return next((at for at, token in enumerate(tokens) if token in ends), len(tokens))


def text_of(model: Model, tokens: Sequence[int], lead: str = "") -> str:
    """The text before the first end of text, without what it begins with."""
    assert model.tokenizer is not None, "the mini models have one"
    text = model.tokenizer.decode(list(tokens[: until_end(tokens, model.ids.ends)]))
    return text.strip().removeprefix(lead)


def less(one: float, than: float) -> str:
    """What is saved, in per cent."""
    return f"{100 * (1 - one / than):.0f} %"
