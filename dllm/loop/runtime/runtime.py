"""How turns are run: ``runtime=auto | eager | static | compile | cudagraph | compile_cudagraph``.

All give the same tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from shutil import which
from typing import Any

import torch
from torch import Tensor

from dllm.common.errors import Refusal, Set, in_choices, in_range
from dllm.common.terminal import complain_folded
from dllm.compose.fitted import Parts
from dllm.contract.clash import Clash, Selection, refuse_clashes
from dllm.contract.needs import readouts_of
from dllm.contract.setting import Setting
from dllm.kernels.dispatch import amd_kind
from dllm.kernels.invariant import Tiled
from dllm.kernels.packed import PackedLinear
from dllm.kernels.rounded_linear import RoundedLinear
from dllm.models.config import ModelConfig
from dllm.models.network.transformer import Transformer

RUNTIMES = ("auto", "eager", "static", "compile", "cudagraph", "compile_cudagraph")
COMPILED, RECORDED = ("compile", "compile_cudagraph"), ("cudagraph", "compile_cudagraph")
FIXED = (*COMPILED, *RECORDED)  # they run in every turn what they compiled or recorded once
COMPILED_CAPABILITY = (7, 0)  # torch.compile's Triton takes no older GPU
# (tokens [B, n], positions [B, L], memory, columns [B, n], and what only some networks take) ->
# (hidden states [B, n, D], their columns [B, n])
Network = Callable[..., tuple[Tensor, "Tensor | None"]]


EAGER, STATIC, NO_LAG = Set("runtime", "eager"), Set("runtime", "static"), Set("lag", 0)
RECORDING = Set("runtime", "cudagraph")


def _lags(c: Selection) -> dict[str, Any] | None:
    return {"lag": c.runtime.lag} if c.runtime.lag else None


# Parts whose shapes no runtime but ``eager`` can bound.
SHAPES = (
    Clash(lambda c: c.attention.sealed and c.runtime.name != "eager",
          "{runtime} runs the layers of the model one by one, and this model is {kind:value}.", [EAGER]),
    Clash(lambda c: c.length.traits.changes and (c.runtime.name != "eager" or c.runtime.lag),
          "{runtime} fixes how wide a canvas is, and {length} changes it.", [EAGER & NO_LAG]),
    Clash(lambda c: c.does.branches and _lags(c),
          "{lag} lets rows wait, but {sampler} must choose among its candidates in the next turn.", [NO_LAG],
          at="sampler"),
    Clash(lambda c: c.runtime.name != "eager" and not c.cache.traits.bounded_shapes,
          "{runtime} asks the device for nothing within a turn, and {cache} asks it there what to compute.", [EAGER],
          at="cache"),
    Clash(lambda c: not c.cache.traits.bounds_late and _lags(c),
          "{lag} reads late what a turn has filled, but how many columns {cache} computes is known from the turn "
          "before alone.", [NO_LAG], at="cache"),
)  # fmt: skip


def _asks(c: Selection) -> bool:
    """Whether a part asks the device in its turn, so that forwards are recorded by themselves."""
    return bool(c.does.syncs or c.eos.traits.syncs)


def _changes(c: Selection) -> str:
    """What changes its number with the text."""
    if c.does.branches:
        return "several candidates"
    return "extra queries" if any(read.extra_queries for read in readouts_of(c.needs_by_group["sampler"])) else ""


# What compiled or recorded layers and turns cannot do.
REPEATS = (
    Clash(lambda c: c.cache.traits.acts_in_layers and (c.runtime.name in COMPILED or _asks(c)) and {
              "runs": "compiled layers" if c.runtime.name in COMPILED
              else "recorded forwards, as a part asks the device,"},
          "{runtime} runs {runs:value} and {cache} acts between layers.", [STATIC], at="cache"),
    Clash(_changes, "{runtime} needs shapes that repeat, but {sampler} has {what:value}, whose number changes with the "
          "text.", [EAGER, STATIC], at="sampler"),
    Clash(lambda c: any(readout.reads_attention or readout.layer is not None
                        for readout in readouts_of(c.needs_by_group["sampler"])),
          "{runtime} runs layers that it has compiled or recorded, and {sampler} reads attention weights or hidden "
          "states between them.", [EAGER, STATIC], at="sampler"),
    Clash(lambda c: c.runtime.name in COMPILED and c.model.moe is not None,
          "{runtime} cannot follow a model with routed experts: torch.compile does not read their kernel.",
          [RECORDING, STATIC]),
    Clash(lambda c: c.runtime.name in RECORDED and (c.model.carries or c.does.soft is not None) and _asks(c),
          "{runtime} records forwards by themselves where the end of a text is looked for on the host ({stop:name}), "
          "and these are handed something by the one before.", [STATIC], "Or drop {stop:name}."),
    Clash(lambda c: c.runtime.name in RECORDED and c.device != "cuda" and {"device": c.device},
          "{runtime} records the work of a GPU, and the model is on {device:value}.",
          [EAGER, Set("model.device", "cuda")], "On a CPU, eager is the fastest."),
)  # fmt: skip


@dataclass(frozen=True)
class Runtime:
    """How a forward is run, by ``name``.

    - ``eager``: shapes are exact, which takes a few copies from the device in every turn (free on a CPU).
    - ``static``: shapes are bounds that the host knows, so a turn waits for nothing.
    - ``compile``: static, with layers through torch.compile.
    - ``cudagraph``: static, with whole turns recorded as CUDA graphs and replayed (forwards alone, if the sampler or
      the end-of-text policy asks the device).
    - ``compile_cudagraph``: both.
    - ``auto``: static on a GPU if the parts allow it, else eager.
    """

    name: str = "auto"  # auto, eager, static, compile, cudagraph or compile_cudagraph
    # how many turns late the host reads what a turn has filled. 0: it waits for every turn, and the device then waits
    # for it. 1: none waits. Where the forward that opens a block is wider than others (cache=prefix, dual), the row
    # then waits a turn for the host to know; otherwise a finished row stays a turn longer. None: 1 on a GPU, if no turn
    # has several candidates of a row, else 0
    lag: int | None = None

    def __post_init__(self) -> None:
        in_choices("runtime", self.name, RUNTIMES)
        in_range("lag", self.lag, 0, 8)
        if self.name == "eager" and self.lag:
            says = "{lag} needs turns that wait for nothing: eager asks the device in every one."
            raise Refusal(says, {"lag": self.lag}, [STATIC])

    @property
    def reads(self) -> int | None:
        """How many turns late the host reads; None: shapes are exact."""
        return None if self.name == "eager" else self.lag or 0

    def resolved(self, parts: Parts, config: ModelConfig, device: torch.device) -> Runtime:
        """The runtime of these parts on this device. Raises UserError as ``check`` does."""
        if self.name == "auto":
            if device.type != "cuda" and not self.lag:
                return Runtime("eager")
            try:
                return replace(self, name="static").resolved(parts, config, device)
            except Refusal as refusal:
                if self.lag:
                    raise
                say_once(f"runtime=auto decodes under eager: {refusal.reason}")
                return Runtime("eager")
        self.check(parts, config, device)
        cache = parts.cache.traits
        waits = parts.sampler.traits.branches or not cache.bounds_late or (cache.bounds_by_masks and not parts.steady)
        late = device.type == "cuda" and not waits and self.name != "eager"
        return replace(self, lag=int(late)) if self.lag is None else self

    def check(self, parts: Parts, config: ModelConfig, device: torch.device) -> None:
        """Refuse, with UserError, parts whose shapes the runtime cannot bound, and a device that it cannot use."""
        if self.name == "auto":
            return
        setting = Setting(config, parts.blocks, None, parts.sampling)
        chosen = parts.sampler, parts.cache, parts.eos, parts.length
        selection = Selection(setting, *chosen, runtime=self, device=device.type)
        refuse_clashes(selection, ("", None, SHAPES), ("", None, REPEATS if self.name in FIXED else ()))
        if self.name in COMPILED:
            check_compiler(self.name, device)

    def network(self, model: Transformer, whole: bool = False) -> Network:
        """The model as the loop calls it. whole: whole turns are recorded. Raises UserError for a model that the
        runtime cannot run."""
        if self.name not in FIXED:
            return model
        if model.places is not None:
            raise Refusal(
                "{runtime} needs the model on one GPU, and this one is spread over several devices. Use "
                "{model.device=cuda:0} if it fits, or {runtime=static}.",
                [self.name],
            )
        if self.name in RECORDED:
            if model.config.moe is not None and not model.triton:
                raise Refusal(
                    "{runtime=cudagraph} runs routed experts with our kernel alone: without it every layer asks the "
                    "GPU which of them run.",
                    [],
                    (Set("kernels", "auto"), Set("runtime", "static")),
                )
            if self.name == "cudagraph":
                from dllm.loop.runtime.graphs import Graphs, Recorder

                return model if whole else Graphs(model, Recorder(model.device))
        if any(isinstance(part, PackedLinear | Tiled | RoundedLinear) for part in model.modules()):
            way_out = "load the model with pack=False and kernels='auto'"
            raise Refusal(f"{{runtime}} cannot compile packed weights: {way_out}.", [self.name])
        from dllm.loop.runtime.compiled_layers import CompiledNetwork

        return CompiledNetwork(model)


@cache
def say_once(sentence: str) -> None:
    """Say it on standard error, the first time."""
    complain_folded(sentence)


def check_compiler(name: str, device: torch.device) -> None:
    """Raises UserError where torch.compile lacks its compiler: on a GPU also Triton, and a GPU that Triton takes."""
    if which(os.environ.get("CXX", "g++")) is None and which("clang++") is None:
        raise Refusal("{runtime} needs a C++ compiler, g++ or clang++. Install one, or use {runtime=static}.", [name])
    if device.type != "cuda":
        return
    nearest = "runtime=static" if name == "compile" else "runtime=cudagraph"
    if find_spec("triton") is None:
        raise Refusal(
            "{runtime} compiles with Triton, which is not installed here (on Linux, PyTorch's builds for GPUs "
            f"bring it along). Use {nearest}.",
            [name],
        )
    if amd_kind(device) is None and (capability := torch.cuda.get_device_capability(device)) < COMPILED_CAPABILITY:
        raise Refusal(
            "{runtime} compiles for GPUs of compute capability 7.0 (Volta) or newer, and this one has "
            f"{'.'.join(map(str, capability))}. Use {nearest}.",
            [name],
        )
