"""Rollouts: what a trainer needs of a decode, as tensors.

Letters: R rollouts (P prompts times n), Lp the longest prompt, G answer columns, T the most forwards of a row. Prompts
are padded on the left and answers on the right, so that column Lp begins every answer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import IntEnum
from errno import ENOENT
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dllm.common.atomic_write import whole_file
from dllm.common.errors import UserError, in_words
from dllm.contract.constrained import ConstraintReport
from dllm.contract.setting import Sampling
from dllm.record.results import Result
from dllm.scoring.rl.rollout_files import check_header, check_tensors

HEADER_KEY = "rollouts"  # name in the file's metadata of what is not a tensor, as JSON
SPREAD = 1e-4  # added to the standard deviation of a group's rewards


class Origin(IntEnum):
    """Where a token comes from: values of ``Rollouts.origin``."""

    GIVEN = 0  # there before the first forward, or never decided
    DRAWN = 1  # drawn, and chosen by the rule
    FORCED = 2  # drawn, and forced: no position passed the rule's test, or the model's attention decides it alone
    FILLED = 3  # written by the end-of-text policy
    CONSTRAINED = 4  # put there by a constraint, which corrected or replaced a draw


@dataclass(frozen=True, eq=False, repr=False)
class Rollouts:
    """Decoded trajectories. All tensors are on one device, and are ordinary ones: autograd may save them. In papers:
    experience, trajectories."""

    prompt_ids: Tensor  # [R, Lp] int64, padded on the left
    prompt_mask: Tensor  # [R, Lp] int64: 1 where a prompt's token is
    # [R, G] int64: the canvas as decoded, after its end, too; the mask's id where nothing was decided, and the pad's
    # after the columns that a row asked for
    completion_ids: Tensor
    # [R, G] int64: 1 through the first token that ends the text, or that completes a stop string; all 1 without one
    completion_mask: Tensor
    step_map: Tensor  # [R, G] int32: forward, from 1, that left the token (0: none did); papers: trajectory, step map
    origin: Tensor  # [R, G] int8: where each token comes from, one of ``Origin``
    # [R, G] log softmax(z)[token] in nats, in the forward of ``step_map``: under the model alone, at temperature 1,
    # with guidance, without banned ids. nan where ``origin`` is 0 or 3; float32, of a float64 model float64
    own_logps: Tensor
    # [R, G] the same under what the token was drawn from: temperature, filters, and the ids that a constraint allowed;
    # 0 at temperature 0, nan also where the token was not drawn; papers: old log-probabilities, behaviour policy
    drawn_logps: Tensor
    block: Tensor  # [R, G] int32: number of the column's block, from 0
    # [R, T] int32: valid columns of the row in each of its forwards, prompt included; 0: the row had ended
    width: Tensor
    forwards: Tensor  # [R] int64: forwards that the row took; papers: NFE
    seeds: Tensor  # [R] int64: seed of each row; alone and with it, the row decodes the same
    group: Tensor  # [R] int64: number of its prompt; papers: uid
    temperature: Tensor  # [R] float64: of the row's draws
    bent: Tensor  # [R] bool: a constraint corrected a proposal of the row, or changed or held up a commit
    # [R, T, G] int32: what each forward proposed at every masked column that it scored, -1 elsewhere (None: not asked
    # for)
    draw_ids: Tensor | None
    # [R, T, G] int32: the answer before each forward (None: ``step_map`` tells it)
    canvas_ids: Tensor | None
    finish: list[str]  # of each row: eos, stop_string or length
    texts: list[str]  # of each row: its answer
    notes: list[str]  # sentences about these rollouts: how many answers of a group differ, what was filled, ...
    results: list[Result]  # of each row, as a call of the decoder gives it
    mask_id: int  # the id that undecided columns show
    pad_id: int  # the id before prompts, and after answers that are shorter than others
    ends: tuple[int, ...]  # ids that end a text
    # filters, guidance and bans of the draws, and their temperature where it is the same in all rows (else 0)
    sampling: Sampling
    # what log-probabilities cannot be computed again, and why, as sentences: of ``slices``, ``drawn`` and ``draws``
    limits: dict[str, str] = field(default_factory=dict)
    by_block: bool = False  # slices are cut within each block (``trajectory_logprobs``): attention goes by blocks

    def __len__(self) -> int:
        return len(self.seeds)

    def __repr__(self) -> str:
        ends = ", ".join(f"{count} {reason}" for reason, count in Counter(self.finish).items())
        heat = "/".join(f"{value:g}" for value in self.temperature.unique().tolist())
        return (
            f"Rollouts({len(self)} rows of {len(self.group.unique())} prompts, {self.completion_ids.shape[1]} columns, "
            f"temperature {heat}, finish: {ends})"
        )

    @property
    def given(self) -> Tensor:
        """Answer columns [R, G] that were there before the first forward."""
        return (self.origin == Origin.GIVEN) & (self.completion_ids != self.mask_id) & self.asked

    @property
    def asked(self) -> Tensor:
        """Columns [R, G] that a row asked for."""
        lengths = self.width[:, 0].long() - self.prompt_mask.sum(1)
        return torch.arange(self.completion_ids.shape[1], device=lengths.device) < lengths[:, None]

    def at(self, forward: int | Tensor) -> Tensor:
        """The answers [R, G] before a ``forward``, counted from 1; a tensor names one for each row [R]."""
        steps = torch.as_tensor(forward, device=self.step_map.device).reshape(-1, 1)
        return self.completion_ids.masked_fill(self.step_map >= steps, self.mask_id)

    def canvases(self, row: int) -> Tensor:
        """The whole canvas of a row before each of its forwards, ids [T_r, Lp + G]. Raises UserError where commits were
        taken back and no canvas was kept."""
        count = int(self.forwards[row])
        if self.canvas_ids is not None:
            answers = self.canvas_ids[row, :count].long()
        else:
            refuse_limit(self, "slices")
            steps = torch.arange(1, count + 1, device=self.step_map.device)[:, None]
            answers = self.completion_ids[row].masked_fill(self.step_map[row] >= steps, self.mask_id)
        return torch.cat([self.prompt_ids[row].expand(count, -1), answers], 1)

    def row(self, number: int) -> Result:
        """The result of one row."""
        return self.results[number]

    def ids(self, number: int) -> tuple[list[int], list[int]]:
        """The ids of one row's prompt, and of its answer through its end."""
        prompt, answer = self.prompt_mask[number].bool(), self.completion_mask[number].bool()
        return self.prompt_ids[number][prompt].tolist(), self.completion_ids[number][answer].tolist()

    def select(self, rows: Sequence[int] | Tensor) -> Rollouts:
        """Some rows, by number or as a boolean mask [R], in that order."""
        index = torch.as_tensor(rows, device=self.seeds.device)
        index = index.nonzero()[:, 0] if index.dtype == torch.bool else index.long()
        numbers = index.tolist()
        names = ("finish", "texts", "results")
        lists: dict[str, Any] = {name: [getattr(self, name)[at] for at in numbers] for name in names}
        return replace(self._each(lambda tensor: tensor[index]), **lists)

    def to(self, device: torch.device | str) -> Rollouts:
        """The same with all tensors on ``device``."""
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Rollouts:
        tensors: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors().items()}
        return replace(self, **tensors)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        entries = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: value for name, value in entries.items() if isinstance(value, Tensor)}

    def advantages(self, rewards: Sequence[float | None] | Tensor, scale: bool = True) -> Tensor:
        """Rewards [R] relative to their group: minus its mean, and with ``scale`` over its standard deviation
        (unbiased, plus 1e-4) [R]. A group with one reward has 0, and so has a row without any (None, as TRL's reward
        functions say that they do not apply), which counts in no mean. In papers: GRPO's advantage. Raises UserError
        for another number of rewards, and for one that is not finite."""
        numbers = rewards.tolist() if isinstance(rewards, Tensor) else list(rewards)
        has = torch.tensor([number is not None for number in numbers], dtype=torch.bool, device=self.group.device)
        reward = torch.tensor([number or 0.0 for number in numbers], dtype=torch.float64, device=has.device)
        if reward.shape != self.seeds.shape:
            raise UserError(f"rewards have the shape {list(reward.shape)}, and there are {len(self)} rollouts.")
        for at in (~reward.isfinite()).nonzero().flatten().tolist():
            raise UserError(
                f"rewards[{at}]={numbers[at]} must be a finite number, or None for a rollout without a reward."
            )
        _, group = self.group.unique(return_inverse=True)
        sums = lambda values: torch.zeros(int(group.max()) + 1).to(values).index_add(0, group, values)  # noqa: E731
        count = sums(has.double())
        centred = (reward - (sums(reward) / count.clamp(min=1))[group]) * has
        if not scale:
            return centred
        return centred / ((sums(centred.square()) / (count - 1).clamp(min=1)).sqrt() + SPREAD)[group]

    def save(self, file: str | Path) -> None:
        """Write one safetensors file, whose header holds the rest as JSON. Raises UserError where it cannot."""
        from safetensors.torch import save_file

        header = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in self.tensors()}
        header |= {
            "results": [{**result.to_json(), "words": result.words} for result in self.results],
            "sampling": asdict(self.sampling),
        }
        try:
            with whole_file(Path(file)) as scratch:
                tensors = {name: tensor.contiguous().cpu() for name, tensor in self.tensors().items()}
                save_file(tensors, scratch, {HEADER_KEY: json.dumps(header)})
        except OSError as error:
            raise UserError(f"cannot write {file} ({in_words(error)}). Name another place.") from None

    @staticmethod
    def load(file: str | Path) -> Rollouts:
        """What ``save`` wrote, on the CPU. The file may be somebody else's: its kinds, shapes and ranges are checked.
        Raises UserError for any other file."""
        from safetensors import SafetensorError, safe_open

        try:
            if not Path(file).is_file():
                raise FileNotFoundError(ENOENT, "it is no file")
            with safe_open(file, "pt") as reader:
                header = json.loads(reader.metadata()[HEADER_KEY])
                tensors = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118  no mapping
            check_tensors(tensors)
            check_header(header, len(tensors["seeds"]))
            results = [_result_of(row) for row in header.pop("results")]
            sampling, ends = Sampling(**header.pop("sampling")), tuple(header.pop("ends"))
            return Rollouts(**tensors, **header, results=results, sampling=sampling, ends=ends)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
            raise UserError(
                f"{file} holds no rollouts ({in_words(error)}). Name a file that Rollouts.save wrote."
            ) from None


def _result_of(row: dict[str, Any]) -> Result:
    names = {entry.name for entry in fields(Result)}
    report = row["constraint"]
    row = {name: value for name, value in row.items() if name in names}
    return Result(**{**row, "constraint": None if report is None else ConstraintReport(**report)})


def refuse_limit(rollouts: Rollouts, name: str) -> None:
    """Raise UserError where log-probabilities of this kind cannot be computed again."""
    if name in rollouts.limits:
        raise UserError(rollouts.limits[name])
