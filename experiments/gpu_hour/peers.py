"""The cells of ``peers``: Fast-dLLM on the same card, with the same tensors and prompts, its tokens beside ours."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dllm.common.errors import UserError
from dllm.loop.recorded import build_runtime
from dllm.models.bundle import Model
from dllm.models.config import ModelConfig
from dllm.models.network.fused import apart
from dllm.models.weights.names import parameter_source
from experiments.bench.peer_worker import FAST_DLLM, Missing, found
from experiments.bench.random_checkpoint import SHAPES
from experiments.bench.step import Mark
from experiments.gpu_hour.cells import REAL, Cell, check
from experiments.gpu_hour.switches import stand_in
from experiments.gpu_hour.texts import Batches, prompts
from experiments.gpu_hour.timed import Models

COUNT = {"threshold": 4, "fixed": 1}  # prompts that are timed, by rule: one token a forward takes three times as long
ROUNDS = 2
THEIR_TURN = 0.03  # seconds of a forward of theirs, in which Python launches some 900 kernels


def pairs() -> list[Cell]:
    """One token a forward last, since it takes longest."""
    return [replace(REAL, cache=cache, rule=rule) for rule in COUNT for cache in ("dual", "prefix", "none")]


def seconds(cell: Cell) -> float:
    """What a pair takes: two prompts to warm up, then all of them in every round."""
    forwards = cell.answer / (2.5 if cell.rule == "threshold" else 1)
    return (2 + ROUNDS * COUNT[cell.rule]) * forwards * (THEIR_TURN + cell.turn_seconds) + 3.0


@dataclass(frozen=True)
class FastDLLM:
    """NVlabs/Fast-dLLM's network on our tensors, and its three decodes."""

    network: Any  # its LLaDAModelLM
    functions: dict[str, Callable[..., tuple[Tensor, int]]]  # by our cache

    @staticmethod
    def of(folder: Path, model: Model) -> FastDLLM:
        """Raises UserError for a folder without its files."""
        if (place := str(folder / "llada")) not in sys.path:
            sys.path.insert(0, place)
        try:
            functions = {cache: found("generate", name, "threshold") for cache, name in FAST_DLLM.items()}
            kind, inner, sized = (
                found("model.modeling_llada", name)
                for name in ("LLaDAModelLM", "LLaDAModel", "create_model_config_from_pretrained_config")
            )
            settings = found("model.configuration_llada", "LLaDAConfig")(**published(model.config))
        except Missing as error:
            raise UserError(f"--fast-dllm={folder}: {error}. Name a checkout of NVlabs/Fast-dLLM.") from error
        settings.use_cache = False  # transformers 5 drops it, and the network reads it
        sizes = sized(settings)
        sizes.init_device = "meta"
        network = kind(settings, model=inner(sizes, init_params=False))
        torch.backends.cuda.enable_mem_efficient_sdp(True)  # which it turns off, for ours too
        network.load_state_dict(
            {
                parameter_source(name, model.config).name: nn.Parameter(one, requires_grad=False)
                for name, one in apart(model.transformer)
            },
            assign=True,
        )
        return FastDLLM(network.eval(), functions)

    def decode(self, cell: Cell, prompt: list[int], mask: int) -> tuple[list[int], int]:
        """The answer, and how many forwards it took."""
        threshold = 0.9 if cell.rule == "threshold" else None
        canvas, forwards = self.functions[cell.cache](
            self.network,
            torch.tensor([prompt], device=self.network.device),
            steps=cell.answer,
            mask_id=mask,
            gen_length=cell.answer,
            block_length=cell.block,
            threshold=threshold,
        )
        return canvas[0, len(prompt) :].tolist(), forwards


def published(config: ModelConfig) -> dict[str, Any]:
    """A config.json of LLaDA's keys."""
    return SHAPES["llada-8b"] | {
        "d_model": config.width,
        "n_heads": config.heads,
        "n_kv_heads": config.kv_heads,
        "n_layers": config.layers,
        "mlp_hidden_size": config.mlp_width,
        "vocab_size": config.vocab,
        "embedding_size": config.vocab,
        "rope_theta": config.theta,
        "rms_norm_eps": config.eps,
        "max_sequence_length": config.max_length,
        "mask_token_id": config.mask_id,
        "eos_token_id": config.eos_id,
        "pad_token_id": config.pad_id,
    }


def beside(cell: Cell, folder: Path, models: Models) -> dict[str, Any]:
    """Tokens a second of both in the faster of their rounds, which they decode in turn, and how many answers are the
    same. The first round may compile or record what the others find."""
    runtime, model = check(cell, models.device), models.text(cell)
    peer, mask = FastDLLM.of(folder, model), model.ids.placeholder
    with stand_in(models.device):
        batches = Batches(cell, model, runtime, build_runtime(runtime, model.transformer, cell.parts))
    asked = prompts(model, 2 + COUNT[cell.rule])
    warm, asked = asked[:2], asked[2:]
    deque(batches.turns(2 * warm), 0)  # compiles and records
    for one in warm:  # at two lengths, so that what it compiles is for any
        peer.decode(replace(cell, rule="threshold"), one, mask)
    spent: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(ROUNDS):
        marks = [Mark(models.device)]
        deque(batches.turns(asked), 0)
        marks.append(Mark(models.device))
        decoded = [peer.decode(cell, one, mask) for one in asked]
        marks.append(Mark(models.device))
        for name, (begin, end) in zip(spent, pairwise(marks), strict=True):
            spent[name].append(begin.until(end))
    answers, costs, _ = batches.answers(asked)
    acting = sum(int(one.queries.any()) for one in costs)  # in the other turns the row waits
    return {
        **vars(cell),
        "prompts": len(asked),
        "ratio": min(spent["theirs"]) / min(spent["ours"]),
        "equal": sum(one == other for one, (other, _) in zip(answers, decoded, strict=True)),
        **{f"{name}_per_s": len(asked) * cell.answer / min(times) for name, times in spent.items()},
        "ours_forwards": acting / len(asked),
        "theirs_forwards": sum(count for _, count in decoded) / len(asked),
    }
