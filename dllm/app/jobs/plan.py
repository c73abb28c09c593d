"""A run before any weights are read: everything that the user can get wrong is refused here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from dllm.app.command_line.options import Options, sampling_of
from dllm.app.jobs.code import code_of, targets
from dllm.app.jobs.entries import Entry, Job, entries_of, jobs_of
from dllm.app.jobs.environment import spare_threads
from dllm.app.jobs.store import Store, key_of, read_config, refuse_other, writing
from dllm.blocks.base import Blocks
from dllm.cache.base import Cache
from dllm.common.kinds import of_kind
from dllm.compose.parts import build, part
from dllm.compose.validate import validate
from dllm.decoder import Decoder
from dllm.eos.base import EndOfText
from dllm.errors import UserError
from dllm.kernels.choose import use_triton
from dllm.models import bundle
from dllm.models.fingerprint import fingerprint
from dllm.models.quantize import check_quantize, check_runtime
from dllm.prompts import Prompts
from dllm.runtime.runtime import Runtime
from dllm.samplers.base import Sampler
from dllm.setting import Sampling, Setting

# What may stand beside resume=FOLDER without saying anything about the run.
BESIDE_RESUME = frozenset({"resume", "live", "animate", "compare"})


@dataclass(frozen=True)
class Parts:
    """The four parts of a decode."""

    sampler: Sampler
    blocks: Blocks
    cache: Cache
    eos: EndOfText

    @staticmethod
    def of(config: Mapping[str, Any]) -> Parts:
        groups = ("sampler", "blocks", "cache", "eos")
        return Parts(*(build(group, config[group], per_request=False) for group in groups))


@dataclass(frozen=True)
class Plan:
    """A resolved configuration, checked, with its model described and not loaded."""

    config: dict[str, Any]
    options: Options
    parts: Parts
    sampling: Sampling
    prompts: Prompts
    path: Path

    @staticmethod
    def of(config: dict[str, Any]) -> Plan:
        """Raises UserError for whatever cannot work."""
        options, sampling, model = Options.of(config), sampling_of(config["sampling"]), config["model"]
        parts = Parts.of(config)
        path, architecture, tokenizer, ids = bundle.describe(model["path"], model["mask_id"])
        prompts = Prompts(architecture, tokenizer, ids, str(model["path"]), options.gen_length, options.chat)
        ids_of = None if tokenizer is None else prompts.ids_of
        if ids_of is not None:
            parts = replace(parts, blocks=parts.blocks.resolved(ids_of))
        bundle.parse_dtype(model["dtype"])
        check_quantize(model["quantize"])
        check_runtime(model["quantize"], config["runtime"])
        name = Path(str(model["path"])).expanduser().resolve().name  # as in bundle.load
        setting = Setting(architecture, parts.blocks, options.gen_length, sampling, name, ids_of)
        parts = replace(parts, sampler=validate(setting, parts.sampler, parts.cache, parts.eos))
        device = bundle.resolve_device(bundle.parse_device(model["device"]))
        use_triton(config["kernels"], device)
        runtime_of(config).check(parts.cache, parts.sampler, architecture, device, parts.blocks)
        if tokenizer is None and options.stop:
            raise UserError(f"stop={options.stop} needs text, and model {prompts.name} has no tokenizer. Drop it.")
        return Plan(config, options, parts, sampling, prompts, path)

    def jobs(self) -> list[Job]:
        """Every sample to decode."""
        return jobs_of(self.entries(), self.prompts, self.options.samples, self.options.seed)

    def entries(self) -> list[Entry]:
        if self.options.prompts is not None:
            return entries_of(Path(self.options.prompts), self.prompts)
        default = self.config["model"].get("prompt") or ""
        prompt = default if self.options.prompt is None else self.options.prompt
        return [Entry(0, "1", prompt, prompt)]

    def decoder(self, model: bundle.Model, sampler: str | None = None) -> Decoder:
        """The decoder of this plan; ``sampler`` replaces the chosen one."""
        parts, options = self.parts, self.options
        return Decoder(
            model, part("sampler", sampler) if sampler else parts.sampler, parts.blocks, parts.cache, parts.eos,
            gen_length=options.gen_length, batch_size=options.batch_size, sampling=self.sampling, stop=options.stop,
            chat=options.chat, runtime=runtime_of(self.config),
        )  # fmt: skip

    def load(self) -> bundle.Model:
        """The weights, at last."""
        loaded = bundle.load(*weights_of(self.config))
        spare_threads(loaded.transformer)
        return loaded

    def refuse_folder(self) -> None:
        """Raise UserError when the run's folder is there and belongs to another configuration."""
        if self.options.resume is not None or self.options.name is not None:
            refuse_other(self.folder(), self.config, self.content())

    def content(self) -> dict[str, str]:
        """What the settings name and do not hold: the checkpoint, and the code of the parts and of a task."""
        named = {group: list(targets(self.config[group])) for group in ("sampler", "blocks", "cache", "eos", "task")}
        codes = {f"{group}'s code": code_of(names) for group, names in named.items() if names}
        return {"checkpoint": fingerprint(self.path), **codes}

    def store(self, jobs: Sequence[Job]) -> Store:
        """The run's folder, new or resumed. Raises UserError when what it holds came from other prompts."""
        store = Store.open(self.folder(), self.config, self.content())
        known = {job.key: job.request for job in jobs}
        for row in store.rows:
            request = known.get(key_of(row))
            prompt = None if request is None else (list(request.tokens[: request.answer_start]), request.seed)
            if prompt is not None and prompt != (row["prompt_tokens"], row["seed"]):
                raise UserError(
                    f"{store.folder} decoded {row['id']!r} from another prompt or seed. Lines of prompts may be mended "
                    "or added at the end; for other prompts start a new run."
                )
        return store

    def folder(self) -> Path:
        """resume=FOLDER, output/name, or a new folder named by the time."""
        if self.options.resume is not None:
            return Path(self.options.resume)
        if self.options.name is not None:
            return Path(self.options.output) / self.options.name
        return fresh_folder(Path(self.options.output), datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))


def weights_of(
    config: Mapping[str, Any], device: str | None = None
) -> tuple[str, str, str, int | None, str, str | None, bool]:
    """The arguments of ``bundle.load``: which weights are read, where to (``device``: an engine's choice), and whether
    they are packed, which ``runtime=compile`` cannot look into."""
    model = config["model"]
    path, place, dtype = str(model["path"]), device or str(model["device"]), str(model["dtype"])
    pack = config["runtime"] != "compile"
    return path, place, dtype, model["mask_id"], str(config["kernels"]), model["quantize"], pack


def runtime_of(config: Mapping[str, Any]) -> Runtime:
    """Raises UserError for what no run can have."""
    return Runtime(config["runtime"], of_kind("check_every", config["check_every"], "int"))


def fresh_folder(parent: Path, name: str) -> Path:
    """Make a folder that no other process has, numbered when several start in the same second."""
    with writing(parent):
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            folder = parent / (name if number == 1 else f"{name}-{number}")
            with suppress(FileExistsError):
                folder.mkdir()
                return folder
    raise UserError(f"output={str(parent)!r} is full of folders named {name}. Choose another, or name=NAME.")


def resumed(config: dict[str, Any], given: Sequence[str]) -> dict[str, Any]:
    """With resume=FOLDER and nothing else that matters, the folder's own configuration; else ``config`` itself.

    ``given``: the names that the user set.
    """
    folder = config["resume"]
    if folder is None:
        return config
    stored = read_config(Path(str(folder)))
    if not set(given) <= BESIDE_RESUME:
        return config
    return {**config, **stored, **{key: config[key] for key in BESIDE_RESUME if key in given}}
