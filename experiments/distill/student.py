"""The model in training: which of its weights learn, and how they are written down."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from dllm.common.installing import not_installed
from dllm.models.config import ModelConfig
from dllm.models.network.transformer import Transformer
from dllm.models.weights.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS, DIGEST, MODULE_PREFIX, base_digest
from dllm.models.weights.files import INDEX, read_contents
from dllm.models.weights.fit import Fit
from dllm.models.weights.hub_name import DATA_FILES
from dllm.models.weights.names import parameter_source
from dllm.models.weights.weights import load_model, save_model
from experiments.distill.recipe import Recipe, Tuning
from experiments.support.course import learning

PRODUCTS = ("attn.q", "attn.k", "attn.v", "attn.o", "mlp.gate", "mlp.up", "mlp.down")
STORED = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}


class Student(nn.Module):
    """A network and its loss in one module, so that accelerate's wrappers see whole steps."""

    def __init__(self, model: Transformer, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, tokens: Tensor, target: Tensor, learnt: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each view [R], and its cross entropy, entropy and share of right tokens [3, R]. Given [R, L]:
        masked canvases, their tokens, the positions that count, and those that are not padding."""
        hidden = self.model.encode(tokens, valid)
        view, column = learnt.nonzero(as_tuple=True)
        logits = self.model.logits(hidden[view, column - self.model.config.prediction_shift])
        terms = self.loss.terms(logits, target[learnt], view, len(tokens))
        return self.loss(terms), torch.stack([terms.cross_entropy, terms.entropy, terms.right]).detach()


def build(folder: Path, config: ModelConfig, recipe: Recipe, device: str) -> Student:
    """The student with the teacher's weights. Raises UserError as ``load_model``."""
    model = load_model(folder, device, getattr(torch, recipe.dtype), config, fuse=False)
    choose_learning(model, recipe.tuning)
    return Student(model, Loss(recipe.beta or 0.0, recipe.certain))


def choose_learning(model: Transformer, recipe: Tuning) -> None:
    """Let the layers and the last norm learn, or adapters on them."""
    if recipe.tune == "lora":
        model.requires_grad_(False)
        add_lora(model, recipe)
        return
    # Embedding and head stay as LoRA leaves them: AdamW would move the rows of tokens that no answer holds.
    for name, weight in model.named_parameters():
        weight.requires_grad_(name.startswith(("layers.", "norm.")))


def refuse_without_peft(recipe: Tuning) -> None:
    """Raise UserError where an adapter is wanted and peft is not installed."""
    if recipe.tune == "lora" and find_spec("peft") is None:
        raise not_installed("tune=lora", "peft", "distill", "use tune=full")


def add_lora(model: Transformer, recipe: Tuning) -> None:
    """Put peft's adapters on the products of all layers. They alone learn, in float32; B is 0 at first."""
    from peft import LoraConfig, inject_adapter_in_model

    torch.manual_seed(recipe.seed)
    names = [product.split(".")[1] for product in PRODUCTS]
    inject_adapter_in_model(LoraConfig(**lora_options(recipe), target_modules=names), model)
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            assert ".lora_" in name, f"{name} must not learn"
            weight.data = weight.data.float()


def lora_options(recipe: Tuning) -> dict[str, Any]:
    return {"r": recipe.rank, "lora_alpha": recipe.alpha, "lora_dropout": 0.0, "bias": "none"}


def export(model: Transformer, recipe: Tuning, base: Path, out: Path) -> None:
    """Write what was learnt: a checkpoint, or an adapter for the base."""
    if recipe.tune == "lora":
        save_adapter(model, recipe, base, out / "adapter")
    else:
        save_checkpoint(model, base, out / "checkpoint")


def exported(recipe: Tuning, base: Path, out: Path) -> tuple[Path, Path | None]:
    """The checkpoint to load after training, and the adapter for it."""
    return (base, out / "adapter") if recipe.tune == "lora" else (out / "checkpoint", None)


def save_checkpoint(model: Transformer, base: Path, folder: Path) -> None:
    """The model under its published names, in the dtype of its base's files, with its base's tokenizer."""
    kinds = [tensor.dtype for tensor in read_contents(base).tensors.values()]
    written = Transformer(model.config)
    written.load_state_dict(model.state_dict())
    save_model(written.to(STORED[max(set(kinds), key=kinds.count)]), folder)
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes files only their owner can read
    for file in (one for pattern in DATA_FILES for one in base.glob(pattern)):
        if file.name not in ("config.json", INDEX):
            shutil.copyfile(file, folder / file.name)


def save_adapter(model: Transformer, recipe: Tuning, base: Path, folder: Path) -> None:
    """peft's files, under the published names of modules, so that peft loads them on the published model too."""
    from peft import LoraConfig

    config, tensors = model.config, {}
    for name, weight in learning(model).items():
        module, half = re.fullmatch(r"(.+)\.(lora_[AB])\.default\.weight", name).groups()  # type: ignore[union-attr]
        published = parameter_source(f"{module}.weight", config).name.removesuffix(".weight")
        tensors[f"{MODULE_PREFIX}{published}.{half}.weight"] = weight.detach().cpu().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    adapted = {name.removeprefix(MODULE_PREFIX).split(".lora_")[0] + ".weight" for name in tensors}
    with torch.device("meta"):
        skeleton = Transformer(config)
    digest = base_digest(adapted, Fit.of(skeleton, read_contents(base)).tensors)
    save_file(tensors, folder / ADAPTER_WEIGHTS, {"format": "pt", DIGEST: digest})
    written = LoraConfig(
        **lora_options(recipe),
        target_modules=pattern_of(config),
        base_model_name_or_path=recipe.model,
        inference_mode=True,
    )
    content = {key: sorted(value) if isinstance(value, set) else value for key, value in written.to_dict().items()}
    (folder / ADAPTER_CONFIG).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def pattern_of(config: ModelConfig) -> str:
    """A pattern of the published modules that are adapted. Their last names alone would match LLaDA's head, ff_out."""
    names = config.layout.names
    last = "|".join(re.escape(names[product]) for product in PRODUCTS)
    return rf".*\.\d+\.({last})"


@dataclass(frozen=True)
class Loss:
    """beta: weight of the entropies (0: none, plain distillation on the teacher's answers). certain: where entropy is
    penalised, ``right`` (where the argmax is the teacher's token already; elsewhere it would harden mistakes) or
    ``all``. temperature: of the distributions whose entropy it is."""

    beta: float
    certain: str = "right"
    temperature: float = 0.5

    def __call__(self, terms: Terms) -> Tensor:
        """The loss of each view [R]."""
        return terms.cross_entropy + self.beta * terms.entropy

    def terms(self, logits: Tensor, target: Tensor, view: Tensor, views: int) -> Terms:
        """Means over the masked positions M of each of R views. logits [M, V], target [M], view [M]: which it is of."""
        right = logits.argmax(-1) == target
        wanted = right if self.certain == "right" else right | True
        member = (view == view.new_tensor(range(views))[:, None]).to(logits.dtype)  # [R, M]; a sum in a fixed order
        cross_entropy = F.cross_entropy(logits, target, reduction="none")
        return Terms(
            mean(cross_entropy, member),
            mean(entropy(logits / self.temperature), member * wanted),
            mean(right.to(logits.dtype), member),
        )


@dataclass(frozen=True)
class Terms:
    """Of each view [R]: mean cross entropy of its masked positions and mean entropy of the chosen ones, in nats, and
    the share of positions that it has right; 0 without positions."""

    cross_entropy: Tensor
    entropy: Tensor
    right: Tensor


def entropy(logits: Tensor) -> Tensor:
    """In nats, of the distributions of logits [..., V]."""
    logs = logits.log_softmax(-1)
    return -(logs.exp() * logs).sum(-1)


def mean(values: Tensor, member: Tensor) -> Tensor:
    """Means [R] of values [M] over the rows of ``member`` [R, M]; 0 for a row without members."""
    return member @ values / member.sum(1).clamp(min=1)
