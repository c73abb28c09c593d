"""Adapters as peft writes them, on modules of a checkpoint's published names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dllm.parts import plain_folder

DATA = Path(__file__).parents[1] / "data" / "models"
PRODUCTS = r".*(q_proj|k_proj|v_proj|o_proj|attn_out|ff_proj|ff_out|gate_proj|up_proj|down_proj|query_key_value|dense)"
EMBEDDINGS = ("wte.weight", "embed_tokens.weight", "word_embeddings.weight")


def stored(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder's file, which may be compressed, or of its shards."""
    files = sorted(plain_folder(folder).glob("model*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


class Tree(nn.Module):
    """Modules of the published names with the published matrices: a base that peft wraps."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        for name, tensor in stored(folder).items():
            if tensor.dim() == 2 and not name.endswith(EMBEDDINGS):
                self.put(name.removesuffix(".weight"), tensor.float())

    def put(self, path: str, matrix: Tensor) -> None:
        *above, last = path.split(".")
        place: nn.Module = self
        for part in above:
            if not hasattr(place, part):
                setattr(place, part, nn.Module())
            place = getattr(place, part)
        linear = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
        linear.weight = nn.Parameter(matrix)
        setattr(place, last, linear)


def matrices(model: nn.Module) -> dict[str, Tensor]:
    """The matrices of a tree by their published names."""
    return {
        f"{name}.weight": module.weight.detach()
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }


def adapted(source: Path, folder: Path, **options: Any) -> dict[str, Tensor]:
    """Write an adapter with peft, random in both factors; the published matrices as peft merges them."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    config = LoraConfig(**{"r": 3, "lora_alpha": 7, "target_modules": PRODUCTS, "init_lora_weights": False, **options})
    wrapped = get_peft_model(Tree(source), config)
    wrapped.save_pretrained(folder)
    return matrices(wrapped.merge_and_unload())
