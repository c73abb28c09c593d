"""What the weights of a mini model depend on, and the network and optimizers that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import cos, pi, sin
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dllm.common.errors import UserError
from dllm.models.config import ModelConfig
from dllm.models.network.transformer import Transformer
from dllm.models.weights.checkpoint_path import locate
from dllm.models.weights.shipped import shipped_models
from dllm.models.weights.weights import load_model
from experiments.mini import tokenizer as tokens

LETTERS = (0.4, 0.35, 0.3, 0.25)  # how much of a first embedding the first letters of a word make
WAVES = 6  # of a letter's vector: letters that are near in the alphabet are akin, so that order shows
NBDIFF_BLOCK = 32  # as published


@dataclass(frozen=True)
class Recipe:
    """``steps`` of ``batch`` conversations each. base: the model whose weights training begins with, a name or a folder
    (empty: it begins from scratch)."""

    model: str = "mini-llada"
    width: int = 128
    layers: int = 4
    head_dim: int = 32
    mlp_width: int = 384
    batch: int = 40
    steps: int = 15_900
    muon_rate: float = 0.005
    adam_rate: float = 2e-3
    weight_decay: float = 0.1
    hard_share: float = 0.3  # of the rows are masked where the model least expects the token
    requests: str = "wide"  # which of ``data.MIXES``
    redrawn: float = 0.1  # of the known names have other vectors in a step: see ``redraw``
    kinship: float = 0.85  # of the first embeddings of " list", "List", "LIST"
    seed: int = 0
    base: str = ""

    def progress(self, step: int) -> float:
        """How much of the run is over, 0 to 1. Easy items first are for who cannot copy yet: not with a base."""
        return 1.0 if self.base else step / self.steps


# What differs from the defaults. mini-dream reads a token one place before its own, where another one is: from
# scratch in 16,500 steps its number agreement never came right (words_to_sentence 62 of 100, mini-llada's 100), nor in
# 7,500 from mini-llada's step 7,000 (80). So it begins with mini-llada's weights, and has a layer more to move what was
# read.
# An adapted model begins at what an autoregressive one knows, so it moves more slowly.
# A step takes 0.17, 0.28 and 0.32 s of a core of its own: 22, 19 and 19 minutes. Batches have seeds of their own, so
# that an adapted model meets other items than its base.
NARROW: dict[str, Any] = {"hard_share": 0.0, "requests": "narrow", "redrawn": 0.0}
ADAPTED: dict[str, Any] = {**NARROW, "base": "mini-ar", "muon_rate": 0.004, "adam_rate": 1.5e-3}
USUAL: dict[str, dict[str, Any]] = {
    "mini-llada": {"seed": 1, "muon_rate": 0.004},
    "mini-dream": {
        "base": "mini-llada",
        "requests": "adapted",
        "layers": 5,
        "steps": 12_400,
        "seed": 3,
        "muon_rate": 0.004,
        "adam_rate": 1.5e-3,
    },
    "mini-ar": {**NARROW, "steps": 8000},
    "mini-wedlm": {**ADAPTED, "steps": 4000, "seed": 1},
    "mini-nbdiff": {**ADAPTED, "steps": 3600, "seed": 2},
}


def recipe_of(model: str, **changed: Any) -> Recipe:
    """The model's recipe, with what is ``changed``."""
    return Recipe(model, **{**USUAL.get(model, {}), **changed})


# What config.json says besides the keys that Qwen's layout shares. An autoregressive model is NBDiff's of blocks of 1.
QWEN_LIKE: dict[str, dict[str, Any]] = {
    "mini-dream": {"architectures": ["DreamModel"], "model_type": "Dream"},
    "mini-wedlm": {
        "architectures": ["WeDLMForCausalLM"],
        "model_type": "wedlm",
        "attention_bias": False,
        "qk_norm": False,
    },
    "mini-nbdiff": {
        "architectures": ["PanguEmbeddedForCausalLM"],
        "model_type": "PanguEmbedded",
        "bias": False,
        "block_length": NBDIFF_BLOCK,
    },
    "mini-ar": {
        "architectures": ["PanguEmbeddedForCausalLM"],
        "model_type": "PanguEmbedded",
        "bias": False,
        "block_length": 1,
    },
}


def published_config(recipe: Recipe, vocab: int) -> dict[str, Any]:
    """config.json in the layout of the published LLaDA, Dream, WeDLM or NBDiff."""
    heads = recipe.width // recipe.head_dim
    ids = {
        "mask_token_id": tokens.MASK,
        "bos_token_id": tokens.BOS,
        "eos_token_id": tokens.EOS,
        "pad_token_id": tokens.EOS,
        "torch_dtype": "bfloat16",
    }
    if recipe.model in QWEN_LIKE:
        return {
            **QWEN_LIKE[recipe.model], "vocab_size": vocab, "hidden_size": recipe.width,
            "intermediate_size": recipe.mlp_width, "num_hidden_layers": recipe.layers, "num_attention_heads": heads,
            "num_key_value_heads": heads, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "rope_scaling": None, "max_position_embeddings": tokens.CONTEXT, "tie_word_embeddings": False,
            "use_cache": False, "use_sliding_window": False, "sliding_window": None, "attention_dropout": 0.0, **ids,
        }  # fmt: skip
    return {
        "architectures": ["LLaDAModelLM"], "model_type": "llada", "vocab_size": vocab, "embedding_size": vocab,
        "d_model": recipe.width, "n_layers": recipe.layers, "n_heads": heads, "n_kv_heads": heads, "mlp_ratio": 4,
        "mlp_hidden_size": recipe.mlp_width, "activation_type": "silu", "block_type": "llama", "block_group_size": 1,
        "alibi": False, "rope": True, "rope_full_precision": True, "rope_theta": 10000.0,
        "max_sequence_length": tokens.CONTEXT, "multi_query_attention": None, "attention_layer_norm": False,
        "input_emb_norm": False, "scale_logits": False, "layer_norm_type": "rms", "layer_norm_with_affine": True,
        "rms_norm_eps": 1e-5, "include_bias": False, "include_qkv_bias": False, "bias_for_layer_norm": False,
        "weight_tying": False, "use_cache": False, **ids,
    }  # fmt: skip


def init_weights(model: Transformer, recipe: Recipe, texts: Sequence[str]) -> None:
    """Embedding std 1; the head starts as the embedding, so that what is copied is proposed, for words that training
    never sees too; output projections 0.1 / sqrt(fan_in), other matrices 1 / sqrt(fan_in), biases 0."""
    generator = torch.Generator().manual_seed(recipe.seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            nn.init.zeros_(parameter) if name.endswith("bias") else nn.init.ones_(parameter)
        elif name.startswith("layers"):
            std = parameter.shape[1] ** -0.5 * (0.1 if ".o." in name or ".down." in name else 1)
            nn.init.normal_(parameter, std=std, generator=generator)
    with torch.no_grad():
        model.embed.weight.copy_(embeddings(texts, recipe.width, recipe.kinship, generator))
        model.lm_head.weight.copy_(model.embed.weight * recipe.width**-0.5)
        model.lm_head.weight[tokens.MASK] = 0


def letter_waves(text: str) -> list[float]:
    """What the vector of one character, or none, is made of: smooth in its place in the alphabet."""
    at = (ord(text) - ord("a")) / 26 if "a" <= text <= "z" else -0.2
    return [wave for n in range(1, WAVES + 1) for wave in (cos(pi * at * n / 2), sin(pi * at * n / 2))]


def embeddings(texts: Sequence[str], width: int, kinship: float, generator: torch.Generator) -> Tensor:
    """Rows [V, width] of unit variance. A word is akin to those that begin with the same letters, and by ``kinship`` to
    its other spellings (a space before it, capitals), which differ by a vector that all words share."""
    words = [text.strip().lower() for text in texts]
    vectors: dict[Any, Tensor] = {}

    def vector(key: Any) -> Tensor:
        if key not in vectors:
            vectors[key] = torch.randn(width, generator=generator)
        return vectors[key]

    @cache
    def letter(place: int, text: str) -> Tensor:
        """Of one character, or none. Unit variance, smooth in the letter's place in the alphabet."""
        at = torch.tensor((ord(text) - ord("a")) / 26 if "a" <= text <= "z" else -0.2)
        angles = torch.pi * at * torch.arange(1, WAVES + 1) / 2
        parts = [
            vector((place, wave)) * angles[wave].cos() + vector((place, -1 - wave)) * angles[wave].sin()
            for wave in range(WAVES)
        ]
        return torch.stack(parts).sum(0) / WAVES**0.5

    rows = []
    for text, word in zip(texts, words, strict=True):
        letters = [share * letter(place, word[place : place + 1]) for place, share in enumerate(LETTERS)]
        base = 0.8 * vector(word) + torch.stack(letters).sum(0)
        base = base / (0.64 + sum(share**2 for share in LETTERS)) ** 0.5
        form = (text[:1] == " ", text.strip().istitle(), text.strip().isupper())
        other = 0.8 * vector(form) + 0.6 * torch.randn(width, generator=generator)
        rows.append(kinship * base + (1 - kinship**2) ** 0.5 * other)
    return torch.stack(rows)


def build_model(recipe: Recipe, texts: Sequence[str]) -> Transformer:
    """A model for a vocabulary of these ``texts``, fresh or with its base's weights: what the base lacks (biases, a
    last layer) begins afresh. Raises UserError for a base of other sizes."""
    model = Transformer(ModelConfig.from_published(published_config(recipe, len(texts))))
    weights = load_model(base_of(recipe), fuse=False).state_dict() if recipe.base else {}
    shapes = {name: one.shape for name, one in model.state_dict().items()}
    if any(shapes.get(name) != one.shape for name, one in weights.items()):
        raise UserError(
            f"base={recipe.base!r} has other tensors than {recipe.model}. Give a model of the same width and "
            "vocabulary and at most as many layers, or change these."
        )
    if shapes.keys() - weights.keys():  # spelling the first embeddings takes a second
        init_weights(model, recipe, texts)
    model.load_state_dict(weights, strict=False)
    return model.train()


def base_of(recipe: Recipe) -> Path:
    """The folder of the base. Raises UserError if it is missing."""
    folder = Path(recipe.base).expanduser()
    if recipe.base not in shipped_models() and not folder.is_dir():
        raise UserError(
            f"base={recipe.base!r} is neither a shipped model nor a folder. Train it first (python -m "
            "experiments.mini.train mini-ar --out FOLDER), and give --base FOLDER."
        )
    return locate(recipe.base)


def cut_vocabulary(model: Transformer, seen: int) -> list[Tensor]:
    """Leave the first ``seen`` ids alone in embedding and head, and give the other rows of both.

    Training never meets those: were they in the sum of the softmax, Adam would push them away from all that is ever
    proposed, and a step would take a tenth longer.
    """
    rest = []
    for part in (model.embed, model.lm_head):
        rest.append(part.weight.detach()[seen:].clone())
        part.weight = nn.Parameter(part.weight.detach()[:seen].clone())
    return rest


def add_vocabulary(model: Transformer, rest: Sequence[Tensor]) -> None:
    """Undo ``cut_vocabulary``."""
    parts: tuple[nn.Module, nn.Module] = model.embed, model.lm_head
    for part, rows in zip(parts, rest, strict=True):
        part.weight = nn.Parameter(torch.cat([part.get_parameter("weight").detach(), rows]))


def build_optimizers(
    model: Transformer, recipe: Recipe, each: Callable[..., Iterable[Any]] = map
) -> list[torch.optim.Optimizer]:
    """Muon on the matrices of the blocks, Adam on the rest."""
    blocks = [p for n, p in model.named_parameters() if n.startswith("layers") and p.dim() == 2]
    rest = [p for n, p in model.named_parameters() if not (n.startswith("layers") and p.dim() == 2)]
    return [
        Muon(blocks, recipe.muon_rate, recipe.weight_decay, each),
        torch.optim.Adam(rest, lr=recipe.adam_rate, betas=(0.9, 0.98), fused=True),
    ]


def rate_factor(step: int, steps: int) -> float:
    """Warm-up over 50 steps, constant for a quarter of the run, then linear to 0.02: most is learnt while it falls."""
    return min(1.0, (step + 1) / 50) * min(1.0, 1.0 - 0.98 * (step / steps - 0.25) / 0.75)


COEFFICIENTS, ITERATIONS, EPS = (3.4445, -4.7750, 2.0315), 5, 1e-7  # of torch.optim.Muon


def orthogonalised(update: Tensor) -> Tensor:
    """Each matrix of ``update`` [K, m, n] with its singular values brought near 1 (Newton-Schulz)."""
    a, b, c = COEFFICIENTS
    flat = update.shape[1] > update.shape[2]
    x = update.mT if flat else update
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if flat else x


class Muon(torch.optim.Optimizer):
    """Momentum (Nesterov), orthogonalised, with decoupled weight decay; parameters are matrices.

    Those of one shape are orthogonalised in one stack. torch.optim.Muon takes them one by one in bfloat16: 63 ms a step
    for the 28 matrices of a mini model, on a core whose bfloat16 is half as fast as its float32; stacked in float32,
    30 ms.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float,
        each: Callable[..., Iterable[Any]] = map,
    ) -> None:
        """each: maps a function over the stacks, in this thread or in several."""
        self.each = each
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            stacks: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                stacks.setdefault(parameter.shape, []).append(parameter)
            for _ in self.each(self._move, stacks.values(), [group] * len(stacks)):
                pass

    @torch.no_grad()
    def _move(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        updates = []
        for one in parameters:
            assert one.grad is not None
            momentum = self.state[one].setdefault("momentum", torch.zeros_like(one))
            momentum.lerp_(one.grad, 1 - group["momentum"])
            updates.append(one.grad.lerp(momentum, group["momentum"]))
        rows, columns = parameters[0].shape
        rate = group["lr"] * max(1.0, rows / columns) ** 0.5
        for one, update in zip(parameters, orthogonalised(torch.stack(updates)).unbind(), strict=True):
            one.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)
