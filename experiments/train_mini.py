"""Train the mini models: ``python -m experiments.train_mini --model mini-llada --minutes 60``.

Muon on the matrices of the blocks, Adam on the rest; unit-variance embeddings and small output projections. With
AdamW alone or embeddings of std 0.02 the models stay on the plateau where nothing is copied from the prompt.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from torch import Tensor, nn

from dllm.models.bundle import locate
from dllm.models.config import ModelConfig
from dllm.models.fused import apart
from dllm.models.transformer import Transformer
from dllm.models.weights import load_model, save_model
from dllm.tasks.parallelbench import mini
from experiments import mini_data, mini_tokenizer
from experiments.mini_data import Batch

CHECKPOINT = "training.pt"


@dataclass(frozen=True)
class Recipe:
    """What a run depends on. It stops after ``steps`` steps, or after ``minutes`` when that is set."""

    model: str = "mini-llada"
    width: int = 128
    layers: int = 4
    head_dim: int = 32
    mlp_width: int = 384
    batch: int = 48
    steps: int = 0
    minutes: float = 0.0
    muon_rate: float = 0.005
    adam_rate: float = 2e-3
    weight_decay: float = 0.1
    seed: int = 0
    init_from: str = ""  # a shipped model or a folder


def published_config(recipe: Recipe, vocab: int) -> dict[str, Any]:
    """config.json in the layout of the published LLaDA or Dream."""
    heads = recipe.width // recipe.head_dim
    if recipe.model == "mini-dream":
        return {
            "architectures": ["DreamModel"], "model_type": "Dream", "vocab_size": vocab, "hidden_size": recipe.width,
            "intermediate_size": recipe.mlp_width, "num_hidden_layers": recipe.layers, "num_attention_heads": heads,
            "num_key_value_heads": heads, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "rope_scaling": None, "max_position_embeddings": 256, "tie_word_embeddings": False, "use_cache": False,
            "use_sliding_window": False, "sliding_window": None, "attention_dropout": 0.0,
            "mask_token_id": mini_tokenizer.MASK, "bos_token_id": mini_tokenizer.BOS,
            "eos_token_id": mini_tokenizer.EOS, "pad_token_id": mini_tokenizer.EOS, "torch_dtype": "float32",
        }  # fmt: skip
    return {
        "architectures": ["LLaDAModelLM"], "model_type": "llada", "vocab_size": vocab, "embedding_size": vocab,
        "d_model": recipe.width, "n_layers": recipe.layers, "n_heads": heads, "n_kv_heads": heads, "mlp_ratio": 4,
        "mlp_hidden_size": recipe.mlp_width, "activation_type": "silu", "block_type": "llama", "block_group_size": 1,
        "alibi": False, "rope": True, "rope_full_precision": True, "rope_theta": 10000.0, "max_sequence_length": 256,
        "multi_query_attention": None, "attention_layer_norm": False, "input_emb_norm": False, "scale_logits": False,
        "layer_norm_type": "rms", "layer_norm_with_affine": True, "rms_norm_eps": 1e-5, "include_bias": False,
        "include_qkv_bias": False, "bias_for_layer_norm": False, "weight_tying": False, "use_cache": False,
        "mask_token_id": mini_tokenizer.MASK, "bos_token_id": mini_tokenizer.BOS,
        "eos_token_id": mini_tokenizer.EOS, "pad_token_id": mini_tokenizer.EOS, "torch_dtype": "float32",
    }  # fmt: skip


def init_weights(model: Transformer, seed: int) -> None:
    """Embedding std 1, head 0.02, output projections 0.1 / sqrt(fan_in), other matrices 1 / sqrt(fan_in), biases 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            nn.init.zeros_(parameter) if name.endswith("bias") else nn.init.ones_(parameter)
            continue
        std = 1.0 if name.startswith("embed") else 0.02 if name.startswith("lm_head") else parameter.shape[1] ** -0.5
        nn.init.normal_(parameter, std=std * (0.1 if ".o." in name or ".down." in name else 1), generator=generator)


def build_model(recipe: Recipe, vocab: int) -> Transformer:
    """A fresh model, or one that takes every tensor it shares with ``init_from``."""
    model = Transformer(ModelConfig.from_published(published_config(recipe, vocab)))
    init_weights(model, recipe.seed)
    if recipe.init_from:
        model.load_state_dict(dict(apart(load_model(locate(recipe.init_from)))), strict=False)
    return model.train()


def build_optimizers(model: Transformer, recipe: Recipe) -> list[torch.optim.Optimizer]:
    blocks = [p for n, p in model.named_parameters() if n.startswith("layers") and p.dim() == 2]
    rest = [p for n, p in model.named_parameters() if not (n.startswith("layers") and p.dim() == 2)]
    muon = torch.optim.Muon(blocks, lr=recipe.muon_rate, weight_decay=recipe.weight_decay)
    adam = torch.optim.Adam(rest, lr=recipe.adam_rate, betas=(0.9, 0.98), fused=True)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return [muon, adam]


def rate_factor(step: int, progress: float) -> float:
    """Warm-up over 50 steps, constant for half the run, then linear to 0.02."""
    return min(1.0, (step + 1) / 50) * min(1.0, 1.0 - 0.98 * (progress - 0.5) / 0.5)


HARD_SHARE = 0.35  # of the rows are masked where the model is least sure


@torch.no_grad()
def harden(model: Transformer, batch: Batch, seed: int) -> Batch:
    """The batch with the masks of its last rows moved to where the model, seeing no answer, is least sure."""
    rows = max(1, round(HARD_SHARE * len(batch.tokens)))
    answer = batch.answer[-rows:]
    hidden = model.encode(batch.target[-rows:].masked_fill(answer, mini_tokenizer.MASK), batch.valid[-rows:])
    at, column = answer.nonzero(as_tuple=True)
    sure = model.head(hidden[at, column - model.config.prediction_shift]).float().softmax(-1).amax(-1)
    confidence = torch.zeros(answer.shape).index_put((at, column), sure)
    return mini_data.mask_least_confident(batch, confidence, rows, torch.Generator().manual_seed(seed))


def answer_logits(model: Transformer, batch: Batch) -> Tensor:
    """Logits [M, V] of the masked positions; a model of prediction shift 1 predicts i at i - 1."""
    hidden = model.encode(batch.tokens, batch.valid)
    rows, columns = batch.masked.nonzero(as_tuple=True)
    return model.head(hidden[rows, columns - model.config.prediction_shift])


def loss_of(model: Transformer, batch: Batch) -> Tensor:
    losses = F.cross_entropy(answer_logits(model, batch), batch.target[batch.masked], reduction="none")
    weight = batch.weight[batch.masked]
    return (losses * weight).sum() / weight.sum()


def fixed_ratio_batch(tokenizer: Tokenizer, model: str, task: str, ratio: float, count: int) -> Batch:
    """Held-back items of a task with this share of each answer's content masked, structure and EOS visible."""
    samples = mini.generate(task, 777, count)
    prompts, answers = mini_data.encode(tokenizer, model, samples)
    padded = mini_data.pad_answers(answers, 32)
    noise = torch.rand(padded.shape, generator=torch.Generator().manual_seed(7))
    length = torch.tensor([len(answer) for answer in answers])[:, None]
    content = (torch.arange(32) < length) & ~mini_data.punctuation(tokenizer)[padded]
    return mini_data.pack(prompts, answers, 32, (noise < ratio) & content, padded)


@torch.no_grad()
def gate(model: Transformer, tokenizer: Tokenizer, name: str, count: int = 32) -> dict[str, list[int]]:
    """Percentage of content tokens right per task at mask ratios 0.2, 0.5, 1.0: does it use what is committed?"""
    found: dict[str, list[int]] = {}
    for task in mini.TASKS:
        for ratio in (0.2, 0.5, 1.0):
            batch = fixed_ratio_batch(tokenizer, name, task, ratio, count)
            right = answer_logits(model, batch).argmax(-1) == batch.target[batch.masked]
            found.setdefault(task, []).append(round(100 * right.float().mean().item()))
    return found


@dataclass
class State:
    """What a resumed run needs besides the recipe."""

    model: Transformer
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    seconds: float = 0.0

    def save(self, folder: Path, recipe: Recipe) -> None:
        content = {
            "model": self.model.state_dict(), "optimizers": [o.state_dict() for o in self.optimizers],
            "step": self.step, "seconds": self.seconds, "recipe": asdict(recipe),
        }  # fmt: skip
        torch.save(content, folder / "training.tmp")
        (folder / "training.tmp").replace(folder / CHECKPOINT)

    def load(self, folder: Path) -> None:
        content = torch.load(folder / CHECKPOINT, weights_only=True)
        self.model.load_state_dict(content["model"])
        for optimizer, saved in zip(self.optimizers, content["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds = content["step"], content["seconds"]


def train_step(state: State, recipe: Recipe, batch: Batch, progress: float) -> float:
    with torch.autocast("cpu", torch.bfloat16):  # 1.45 times the samples per second of float32 at width 128
        loss = loss_of(state.model, harden(state.model, batch, state.step))
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(state.model.parameters(), 1.0)
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * rate_factor(state.step, progress)
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


def export(model: Transformer, name: str, folder: Path) -> None:
    """A checkpoint folder that any loader of the published format opens."""
    save_model(model, folder)
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes files only their owner can read
    mini_tokenizer.save(name, folder)


def log(folder: Path, line: dict[str, Any]) -> None:
    with (folder / "log.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


class Run:
    """One training run: data, state and the folder that log, checkpoint and training state go to."""

    def __init__(self, recipe: Recipe, folder: Path, resume: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.recipe, self.folder = recipe, folder
        self.tokenizer = mini_tokenizer.build(recipe.model)
        self.structure = mini_data.punctuation(self.tokenizer)
        model = build_model(recipe, self.tokenizer.get_vocab_size())
        self.state = State(model, build_optimizers(model, recipe))
        if resume and (folder / CHECKPOINT).is_file():
            self.state.load(folder)
        self.began = time.monotonic() - self.state.seconds
        self.average: float | None = None

    @property
    def progress(self) -> float:
        """How much of the run is over: 0 to 1."""
        self.state.seconds = time.monotonic() - self.began
        recipe, state = self.recipe, self.state
        return state.step / recipe.steps if recipe.steps else state.seconds / (60 * recipe.minutes)

    def step(self, progress: float) -> None:
        recipe, state = self.recipe, self.state
        stage = 1.0 if recipe.init_from else progress  # a continuation needs no short phase
        batch = mini_data.make_batch(
            self.tokenizer, recipe.model, self.structure, recipe.batch, stage, recipe.seed, state.step
        )
        loss = train_step(state, recipe, batch, progress)
        self.average = loss if self.average is None else 0.98 * self.average + 0.02 * loss
        state.step += 1

    def gate(self) -> None:
        """Log how much committed tokens help."""
        state = self.state
        line = {"step": state.step, "minutes": round(state.seconds / 60, 1), "loss": round(self.average or 0.0, 3)}
        log(self.folder, line | {"gate": gate(state.model, self.tokenizer, self.recipe.model)})

    def save(self) -> None:
        self.state.save(self.folder, self.recipe)
        export(self.state.model, self.recipe.model, self.folder)


def train(recipe: Recipe, folder: Path, resume: bool = False, gate_every: int = 0, stop_at: int = 0) -> Transformer:
    """Run the recipe and leave the checkpoint in ``folder``; ``stop_at`` ends a part of it early, to be resumed."""
    run = Run(recipe, folder, resume)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, disable=not sys.stderr.isatty()) as bar:
        shown = bar.add_task(recipe.model, total=1.0)
        while (progress := run.progress) < 1 and not 0 < stop_at <= run.state.step:
            run.step(progress)
            step = run.state.step
            bar.update(shown, completed=progress, description=f"{recipe.model} step {step} loss {run.average:.3f}")
            if gate_every and step % gate_every == 0:
                run.gate()
                run.save()
    run.save()
    return run.state.model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in asdict(Recipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--out", type=Path, required=True, help="folder of checkpoint, log and training state")
    parser.add_argument("--resume", action="store_true", help="continue from the training state in --out")
    parser.add_argument("--gate-every", type=int, default=500, help="steps between gate logs")
    given = vars(parser.parse_args())
    torch.set_num_threads(1)
    out, resume, gate_every = given.pop("out"), given.pop("resume"), given.pop("gate_every")
    recipe = Recipe(**given)
    if not recipe.steps and not recipe.minutes:
        parser.error("give --steps or --minutes, the length of the run.")
    train(recipe, out, resume, gate_every)


if __name__ == "__main__":
    main()
