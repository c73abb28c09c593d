"""Commit every proposal that equals a given reference answer (the oracle of Learn2PD, arXiv 2509.25188)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from dllm.common.errors import Refusal, in_words, name_of
from dllm.common.ranking import argmax_mask
from dllm.contract import State, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Clash
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.samplers.base import Sampler


class Oracle(Sampler):
    """Commit the open positions whose proposal equals the reference. Else write the reference's token at
    the most confident position (it counts as forced).

    reference: the answer's tokens for every request, in order, or the folder of a run over the same prompts, which are
    matched by their tokens. With one-token-per-step decodes as reference, rules that only select positions hardly need
    fewer forwards than this one. Positions beyond the reference's end count as right with every proposal.
    """

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=False, tokens="given")
    clashes = (
        Clash(
            lambda c: c.gen_length is not None and ({len(tokens) for tokens in c.part.reference} - {c.gen_length}),
            "{sampler.reference:name} holds an answer of other than the {gen_length:value} tokens of "
            "{gen_length:name}.",
            (),
            "Decode both with the same {gen_length:name}.",
        ),
    )

    def __init__(self, reference: Sequence[Sequence[int]] | str | None) -> None:
        if reference is None:
            raise Refusal(
                "{sampler} needs {sampler.reference:name}: the answer's token ids for each prompt, or the folder of "
                "a run over the same prompts. Make one with: python run.py {sampler=static} prompts=FILE name=NAME",
                [name_of(self)],
            )
        self.by_prompt = answers_of(Path(reference).expanduser()) if isinstance(reference, str) else {}
        self.reference = list(self.by_prompt.values()) if isinstance(reference, str) else list(reference)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        right = torch.full_like(canvas.tokens, -1)
        for row, start in enumerate(canvas.start.tolist()):
            answer = self._answer(int(canvas.param_index[row]), canvas.tokens[row, :start].tolist())
            tokens = torch.tensor(list(answer)[: right.shape[1] - start], dtype=torch.int64)
            right[row, start : start + len(tokens)] = tokens.to(right.device)
        return {"right": right}

    def _answer(self, request: int, prompt: list[int]) -> Sequence[int]:
        if self.by_prompt:
            if tuple(prompt) not in self.by_prompt:
                raise Refusal(
                    f"{{sampler.reference:name}} holds no answer to prompt number {request + 1}. Name a run over "
                    "these prompts."
                )
            return self.by_prompt[tuple(prompt)]
        if request >= len(self.reference):
            raise Refusal(
                f"{{sampler.reference:name}} holds {len(self.reference)} answers, and there is a prompt number "
                f"{request + 1}. Give one answer for each prompt, in the same order."
            )
        return self.reference[request]

    def step(self, view: View, state: State) -> Step:
        token, right = view.scores.token, state["right"]
        accepted = view.open & ((token == right) | (right < 0))
        forced = argmax_mask(view.scores.confidence, view.open) & ~accepted.any(1, keepdim=True)
        return view.step(accepted | forced, tokens=torch.where(forced, right, token), accepted=accepted)


def answers_of(folder: Path) -> dict[tuple[int, ...], list[int]]:
    """The answers by prompt of a run's folder, or of a results.jsonl itself. The first sample counts. Raises
    UserError for any other path."""
    file = folder / "results.jsonl" if folder.is_dir() else folder
    try:
        rows = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
        answers = {tuple(row["prompt_tokens"]): list(row["canvas"]) for row in reversed(rows)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(
            f"{{sampler.reference:quoted}} is not a folder of a run ({in_words(error)}). Name one that holds "
            "results.jsonl.",
            [str(folder)],
        ) from error
    if not answers:
        raise Refusal("{sampler.reference:quoted} holds no answers. Finish that run first.", [str(folder)])
    return answers
