"""Training batches for the mini models: fresh items, padded answers, and the patterns of masks that decoding meets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from dllm.tasks.parallelbench import mini
from experiments.mini_tokenizer import EOS, MASK, TEMPLATES

# Weights of the tasks: those with many right answers learn slowest (they need the committed tokens).
SHARES = {
    "copy": 0.5, "reverse": 0.5, "sort": 1.8, "shuffle": 1.5, "insert_index": 0.8, "insert_random": 1.2,
    "remove_index": 0.7, "remove_random": 1.0, "replace_index": 0.5, "replace_random": 1.2,
    "latin_square": 6.0, "sudoku": 1.2, "words_to_sentence": 2.5,
}  # fmt: skip
LONG = ("latin_square", "sudoku")  # answers over 16 tokens
LATIN_ANSWER, SHORT_ANSWER = 32, 16
EXTRA_EOS_WEIGHT = 0.1
HARD_MASKS = 12  # of 16 or more positions of an answer


@dataclass(frozen=True)
class Batch:
    """tokens [B, L] with masks in place, target, answer positions, masked, weight of the loss, valid: all [B, L]."""

    tokens: Tensor
    target: Tensor
    answer: Tensor
    masked: Tensor
    weight: Tensor
    valid: Tensor


def render(model: str, prompt: str) -> str:
    """The chat template by hand (500 times faster than jinja); a test holds it equal to the shipped one."""
    if model == "mini-dream":
        return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    user, assistant = (f"<|start_header_id|>{role}<|end_header_id|>\n\n" for role in ("user", "assistant"))
    return f"<|startoftext|>{user}{prompt.strip()}<|eot_id|>{assistant}"


def choose(rng: Random, count: int, progress: float) -> tuple[list[mini.MiniItem], int]:
    """Items of one batch and the length of its answers. Short lists first, all tasks after a tenth of the run."""
    if progress < 0.06:
        tasks, length, lengths = [t for t in SHARES if t not in LONG], SHORT_ANSWER, (2, 3)
    else:
        length = rng.choices((16, 24, 32, 48, 64), (0.36, 0.06, 0.48, 0.05, 0.05))[0]
        tasks = [task for task in SHARES if length >= LATIN_ANSWER or task not in LONG]
        lengths = mini.LENGTHS if progress > 0.15 else (2, 4)
    shares = [SHARES[task] * (2 if task in LONG else 1) for task in tasks]
    drawn = rng.choices(tasks, shares, k=count)
    return [mini.draw(task, rng, "train", lengths) for task in drawn], length


def encode(tokenizer: Tokenizer, model: str, samples: list[mini.MiniItem]) -> tuple[list[list[int]], list[list[int]]]:
    """Prompt ids and answer ids (without EOS) of each sample."""
    texts = [render(model, sample.prompt) for sample in samples] + [sample.answer for sample in samples]
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return ids[: len(samples)], ids[len(samples) :]


def punctuation(tokenizer: Tokenizer) -> Tensor:
    """Which ids [V] carry structure only: list pieces, commas, newlines, EOS."""
    marks = {EOS} | {tokenizer.encode(text).ids[0] for text in ('["', '", "', '"]', ",", "\n", ".")}
    return torch.tensor([index in marks for index in range(tokenizer.get_vocab_size())])


def draw_masks(answers: Tensor, structure: Tensor, generator: torch.Generator) -> Tensor:
    """Which answer positions [B, A] are masked: uniform ratios, few masks, all, blocks, structure visible."""
    rows, length = answers.shape
    noise, ratio, mode = (torch.rand(shape, generator=generator) for shape in ((rows, length), (rows, 1), (rows, 1)))
    column = torch.arange(length)
    masked = noise < torch.where(mode < 0.25, 0.3 * ratio, ratio)
    masked |= (mode >= 0.25) & (mode < 0.33)
    block = 2 ** torch.randint(2, 5, (rows, 1), generator=generator)
    start = (torch.rand((rows, 1), generator=generator) * length / block).floor() * block
    blocks = ((noise < ratio) & (column >= start)) | (column >= start + block)
    masked = torch.where((mode >= 0.33) & (mode < 0.45), blocks, masked)
    visible = structure[answers] & (mode >= 0.45) & (mode < 0.75)
    masked &= ~visible
    empty = ~masked.any(1)
    masked[empty, (noise[empty] * ~structure[answers[empty]]).argmax(1)] = True
    return masked


def pack(
    prompts: list[list[int]], answers: list[list[int]], length: int, masked: Tensor, padded: Tensor
) -> Batch:
    """Right-padded sequences prompt + answer, the masks of ``masked`` [B, A] put in."""
    total = max(map(len, prompts)) + length
    target = torch.full((len(prompts), total), EOS)
    hidden, weight = torch.zeros(target.shape, dtype=torch.bool), torch.ones(target.shape)
    answer_at, valid = torch.zeros_like(hidden), torch.zeros_like(hidden)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        start, end = len(prompt), len(prompt) + length
        target[row, :start] = torch.tensor(prompt)
        target[row, start:end] = padded[row]
        hidden[row, start:end] = masked[row]
        answer_at[row, start:end] = True
        weight[row, start + len(answer) + 1 :] = EXTRA_EOS_WEIGHT
        valid[row, :end] = True
    return Batch(target.masked_fill(hidden, MASK), target, answer_at, hidden, weight, valid)


def mask_least_confident(batch: Batch, confidence: Tensor, rows: int, generator: torch.Generator) -> Batch:
    """The last ``rows`` rows masked where the model is least sure: 1 to HARD_MASKS answer positions of each.

    ``confidence`` [rows, L]. Confident positions are committed first when decoding, so these are the states it meets.
    """
    order = confidence.masked_fill(~batch.answer[-rows:], torch.inf).argsort(1).argsort(1)
    masked = batch.masked.clone()
    masked[-rows:] = order < torch.randint(1, HARD_MASKS + 1, (rows, 1), generator=generator)
    return replace(batch, masked=masked, tokens=batch.target.masked_fill(masked, MASK))


def pad_answers(answers: list[list[int]], length: int) -> Tensor:
    """Answers [B, length], EOS after the text."""
    return torch.tensor([answer + [EOS] * (length - len(answer)) for answer in answers])


def make_batch(
    tokenizer: Tokenizer, model: str, structure: Tensor, count: int, progress: float, seed: int, step: int
) -> Batch:
    """The batch of a step, a function of seed and step alone, so that a resumed run sees the same data."""
    rng, generator = Random(f"{seed}/{step}"), torch.Generator().manual_seed(seed * 1_000_003 + step)
    samples, length = choose(rng, count, progress)
    prompts, answers = encode(tokenizer, model, samples)
    padded = pad_answers(answers, length)
    return pack(prompts, answers, length, draw_masks(padded, structure, generator), padded)


assert set(SHARES) == set(mini.TASKS) and set(TEMPLATES) == {"mini-llada", "mini-dream"}
