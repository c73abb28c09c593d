"""``dllm train filter``: Learn2PD's filter for a checkpoint, where ``sampler=learn2pd`` looks for it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from dllm.app.commands.filter_training import ReplayedAnswers, filter_records, fit_filter, train_filter
from dllm.app.commands.interruptible import interruptible
from dllm.app.engines.base import progress_bar
from dllm.app.runs.plan import spare_threads, weights_of
from dllm.app.tuning.tune_options import split
from dllm.common.atomic_write import whole_file
from dllm.common.cache_folder import cache_folder
from dllm.common.digest import json_digest
from dllm.common.errors import UserError, in_range
from dllm.common.terminal import say
from dllm.compose.fitted import Parts
from dllm.compose.parts import build_part
from dllm.compose.trusted import describe_arguments
from dllm.decoder import Decoder
from dllm.models import bundle
from dllm.models.fingerprint import fingerprint, is_download
from dllm.models.weights.footprint import Footprint, in_gib
from dllm.models.weights.shipped import is_shipped
from dllm.parts.blocks.fixed import Fixed
from dllm.parts.cache.none import NoCache
from dllm.parts.eos.none import FullLength
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.learn2pd import WEIGHTS, Learn2PD, filter_beside, filter_in_cache
from dllm.parts.samplers.static import Static
from dllm.prompts import Prompt
from dllm.record.decode_memory import MemoryModel
from dllm.tasks.build import task_of
from dllm.tasks.mini import tasks as mini
from dllm.tasks.own_prompts import OwnPrompts

OF_MINI = 80  # prompts of each task of the mini suite, which serve a model that comes along
# Forwards of the replay for each of one token per step. mini-llada: 2 of 32 a prompt; a batch waits for its slowest.
REPLAYED = 0.2


@dataclass(frozen=True)
class FilterOptions:
    """The options of its own, as ``NAME=VALUE``; all other words are settings of a decode."""

    items: int | None = None  # prompts, drawn by the seed; None: all
    epochs: int = 4000  # full-batch steps; the paper's are 40,000
    out: str | None = None  # the file; None: beside the checkpoint, or in the user's cache

    def check(self) -> None:
        """Raise UserError for a value out of range."""
        in_range("items", self.items, 1)
        in_range("epochs", self.epochs, 1)


def run(words: Sequence[str], settings_of_words: Callable[[list[str]], dict[str, Any]]) -> None:
    """Raises UserError for what cannot work; if possible before weights are read."""
    options, rest = split(words, FilterOptions)
    job = FilterJob.of(settings_of_words(rest), options)
    with interruptible(lambda: "Run the same command again: it goes on."):
        job.run()


@dataclass(frozen=True)
class FilterJob:
    """A training, checked, without weights."""

    config: dict[str, Any]  # the resolved configuration
    options: FilterOptions  # of the command
    model: bundle.Description  # whose filter it will be
    prompts: list[Prompt]  # whose decodes it learns from
    length: int  # of a block
    gen_length: int  # masks after a prompt
    out: Path  # the filter's file

    @staticmethod
    def of(config: dict[str, Any], options: FilterOptions) -> FilterJob:
        """Raises UserError for a model that learn2pd refuses, no prompts, and a file that cannot be written."""
        model = bundle.describe(config["model"]["path"], **describe_arguments(config["model"]))
        if config["model"]["adapter"] is not None:
            raise UserError("a filter is found by the weights in the folder, without model.adapter. Merge it first.")
        if model.config.attention.one_by_one:
            raise UserError(
                f"a filter judges the masks of a block, and {model.name} predicts the next token alone. Decode it "
                "with experiment=ar."
            )
        blocks = build_part("blocks", config["blocks"], per_request=False)
        if not isinstance(blocks, Fixed):
            raise UserError("a filter is for blocks of one length. Set blocks=fixed blocks.block_length=32.")
        length = blocks.block_length
        prompts, budget = filter_prompts(config, options, is_shipped(model.path))
        gen_length = config["gen_length"] or -(-budget // length) * length or length
        if not isinstance(gen_length, int) or gen_length % length:
            raise UserError(f"gen_length={gen_length} must be a multiple of blocks.block_length={length}.")
        job = FilterJob(
            config, options, model, prompts, length, gen_length, filter_file(options.out, model.path, length)
        )
        empty = dict.fromkeys(WEIGHTS, torch.zeros(length, length))
        for rule in (Learn2PD(empty), Static(), ReplayedAnswers([])):
            job.parts(rule)
        return job

    def parts(self, rule: Sampler) -> Parts:
        unfitted = Parts(rule, Fixed(self.length), NoCache(), FullLength())
        return unfitted.fitted(self.model, self.gen_length)

    def decoder(self, model: bundle.Model, rule: Sampler, whole: bool = False) -> Decoder:
        """whole: the answer is one block."""
        return Decoder(
            model,
            rule,
            Fixed(self.gen_length if whole else self.length),
            eos="none",
            gen_length=self.gen_length,
            batch_size=self.config["batch_size"],
            chat=self.config["chat"],
            chat_template_kwargs=self.config["model"]["chat_template_kwargs"] or {},
        )

    def run(self) -> None:
        """Decode, train, write. Each portion of prompts leaves a file, so that it goes on after whatever end."""
        config, seed = self.config, self.config["seed"]
        checkpoint = fingerprint(self.model.path)
        how = {name: value for name, value in config["model"].items() if name != "path"}
        identity = [
            checkpoint,
            how,
            config["chat"],
            config["batch_size"],
            seed,
            self.gen_length,
            self.length,
            self.options.epochs,
            self.prompts,
        ]
        begun = cache_folder() / "filters" / f"begun-{json_digest(identity)}"
        begun.mkdir(parents=True, exist_ok=True)
        model = bundle.load(**weights_of(config))
        spare_threads(model.transformer)
        size = config["batch_size"]
        files = {
            begun / f"{at:06d}.safetensors": self.prompts[at : at + size] for at in range(0, len(self.prompts), size)
        }
        rest = {file: part for file, part in files.items() if not file.is_file()}
        say(self.costs(model, len(rest), len(files)), flush=True)
        undone = sum(map(len, rest.values()))
        with progress_bar(len(self.prompts), len(self.prompts) - undone, title="records") as bar:
            for file, part in rest.items():
                confidence, right = filter_records(partial(self.decoder, model), part, self.length)
                with whole_file(file) as scratch:
                    save_file({"confidence": confidence, "right": right}, scratch)
                bar.update(len(part))
        records = [load_file(file) for file in files]
        confidence, right = (torch.cat([record[name] for record in records]) for name in ("confidence", "right"))
        weights, lines = fit_filter(confidence, right, self.options.epochs, seed, begun / "training.pt")
        about = {"model": model.name, "block_length": str(self.length), "checkpoint": checkpoint}
        with whole_file(self.out) as scratch:
            save_file(weights, scratch, about)
        shutil.rmtree(begun)
        use = "sampler=learn2pd" + f" sampler.filter={self.out}" * (self.options.out is not None)
        say("\n".join([*lines, f"{self.out}: of {len(right)} records; decode with {use}"]))

    def costs(self, model: bundle.Model, rest: int, parts: int) -> str:
        """What is to be decoded, with minutes and memory."""
        size, kind = self.config["batch_size"], self.config["model"]["quantize"]
        rows = sorted(self.prompts, key=lambda prompt: len(str(prompt)))[-size:]
        decoder = self.decoder(model, Static(steps=2), whole=True)
        length = max(len(row.prompt_tokens) for row in decoder(rows)) + self.gen_length
        forward = least_wall(lambda: decoder(rows)) / 2
        records = torch.rand(max(2, int(0.8 * len(self.prompts) * self.gen_length * REPLAYED)), self.length)
        epoch = least_wall(lambda: train_filter(records, records.round(), 10, 0)) / 10
        minutes = (rest * self.gen_length * (1 + REPLAYED) * forward + self.options.epochs * epoch) / 60
        dtype = model.transformer.dtype
        weights = Footprint.of(model.config, kind or str(dtype).removeprefix("torch."), model.quantize_head).file_bytes
        try:
            memory_model = MemoryModel(model.config, self.parts(Static()), weights, dtype.itemsize, self.gen_length)
            memory = f"{in_gib(memory_model.use(size, length).most)} GiB"
        except UserError:  # forwards of another network, which are not counted
            memory = f"{in_gib(weights)} GiB of weights"
        progress = f", {parts - rest} of {parts} portions are done" if rest < parts else ""
        what = f"{len(self.prompts)} prompts, {self.gen_length} masks after each, blocks of {self.length}{progress}"
        return f"{model.name}: {what}. About {minutes:.1f} minutes and {memory}."


def least_wall(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of three calls: the first is slower, and the machine may have other work."""
    times = []
    for _ in range(3):
        began = time.monotonic()
        call()
        times.append(time.monotonic() - began)
    return min(times)


def filter_prompts(config: dict[str, Any], options: FilterOptions, shipped: bool) -> tuple[list[Prompt], int]:
    """The prompts, and the tokens that an answer may take (0: that is not known). Raises UserError for none."""
    file, questions = config["prompts"], "_target_" in config["task"]
    if file is not None and questions:
        raise UserError(f"prompts={file} and task={config['task']['name']} exclude each other. Drop one.")
    if file is not None or questions:
        items = (OwnPrompts(file, 0) if file is not None else task_of(config["task"])).items()
        prompts, budget = [item.prompt for item in items], max((item.budget for item in items), default=0)
    elif shipped:
        tasks = (mini.generate(task, config["seed"] + 1000, OF_MINI, "train") for task in mini.SHORT_ANSWERS)
        prompts, budget = [sample.messages for task in tasks for sample in task], 0
    else:
        prompts, budget = [], 0
    if not prompts:
        raise UserError("there are no prompts to train a filter by. Give prompts=FILE, or a task's by task=NAME.")
    if options.items is not None and options.items < len(prompts):
        prompts = Random(config["seed"]).sample(prompts, options.items)
    return prompts, budget


def filter_file(out: str | None, checkpoint: Path, length: int) -> Path:
    """Where the filter goes. Raises UserError where nothing can be written."""
    where, reason = filter_beside(checkpoint, length), "this user has no home"
    for place in [Path(out).expanduser()] if out is not None else places_of_ours(checkpoint, length):
        where = place
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place.parent):
                if not place.is_dir():
                    return place
                reason = "it is a folder"
        except OSError as error:
            reason = error.strerror or str(error)
    raise UserError(f"cannot write {where} ({reason}). Name a file of another folder by out=FILE.")


def places_of_ours(checkpoint: Path, length: int) -> Iterator[Path]:
    """Where ``sampler=learn2pd`` finds a checkpoint's filter: beside it, unless that folder is no place of the user's,
    then in the cache."""
    if not (is_shipped(checkpoint) or is_download(checkpoint if checkpoint.is_dir() else checkpoint.parent)):
        yield filter_beside(checkpoint, length)
    with suppress(UserError):  # a user without a home has no cache
        yield filter_in_cache(checkpoint, length)
