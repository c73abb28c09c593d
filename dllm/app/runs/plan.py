"""A run's plan: its configuration, checked before weights are read. What a user can get wrong is refused here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dllm.app.command_line.options import Options, checked_sampling
from dllm.app.runs.destinations import fresh_folder
from dllm.app.runs.folder import RunFolder, refuse_other
from dllm.app.runs.samples import PlannedSample, PromptEntry, constraint_digest, planned_samples, prompt_entries
from dllm.common.coerce import coerce
from dllm.common.errors import UserError, name_of
from dllm.common.terminal import complain
from dllm.compose.fitted import Parts
from dllm.compose.parts import build_part
from dllm.compose.trusted import describe_arguments
from dllm.compose.tuned import TUNED_FILES, warn_of_another_model
from dllm.compose.validate import check_ranks
from dllm.constraints.decoding.requests import Constraints
from dllm.constraints.kinds import Constraint, TaskConstraint, refuse_stop
from dllm.contract.canvas import Request
from dllm.contract.setting import Sampling
from dllm.decoder import Decoder
from dllm.kernels.dispatch import check_invariant
from dllm.loop.runtime.runtime import COMPILED, Runtime
from dllm.models import bundle
from dllm.models.arithmetic import check_numbers, parse_device, parse_dtype, resolve_device
from dllm.models.fastest import Kinds, Residence, settled_kinds
from dllm.models.fingerprint import fingerprint
from dllm.models.network.rope_ntk import RopeSetting
from dllm.models.weights.cut import check_cut
from dllm.models.weights.footprint import parameter_count
from dllm.models.weights.quantize import check_runtime
from dllm.parts.eos.thinking_budget import refuse_budget
from dllm.prompts import Prompts
from dllm.record.code_hash import code_hash, targets
from dllm.record.folders import key_of
from dllm.scoring.decisions.calibration import read_calibration

if TYPE_CHECKING:
    from dllm.models.network.transformer import Transformer


SMALL_MODEL = 10_000_000  # parameters


@dataclass(frozen=True)
class RunPlan:
    """A resolved configuration, checked. The model is described, not loaded."""

    config: dict[str, Any]  # the resolved configuration
    options: Options  # config.yaml's own keys
    parts: Parts  # sampler, blocks, cache and end-of-text policy
    sampling: Sampling  # temperature, filters, guidance
    prompts: Prompts  # what is decoded
    path: Path  # the checkpoint's folder
    constraint: Constraint | None = None  # of every text that brings none of its own (None: such texts are free)
    calibration: Mapping[str, float] = field(default_factory=dict)  # temperatures of decisions, by type of question

    @staticmethod
    def of(config: dict[str, Any]) -> RunPlan:
        """Raises UserError for what cannot work."""
        options, sampling, model = Options.of(config), checked_sampling(config["sampling"]), config["model"]
        unfitted = Parts.of(config, sampling)
        checkpoint = bundle.describe(model["path"], **describe_arguments(model))
        architecture, tokenizer = checkpoint.config, checkpoint.tokenizer
        bundle.warn_of_mismatch(model, architecture)
        if TUNED_FILES:
            warn_of_another_model(fingerprint(checkpoint.path))
        prompts = Prompts(
            architecture,
            tokenizer,
            checkpoint.ids,
            str(model["path"]),
            options.gen_length,
            options.chat,
            model["chat_template_kwargs"] or {},
        )
        dtype, device = parse_dtype(model["dtype"]), resolve_device(parse_device(model["device"]))
        bundle.read_adapter(model["adapter"], architecture, model["path"])
        bundle.read_draft_adapter(model["draft_adapter"], architecture, model["path"])
        if model["draft_adapter"] is not None and unfitted.sampler.traits.verifies != "in_place":
            raise UserError(
                f"model.draft_adapter={model['draft_adapter']} adapts drafts, and sampler={name_of(unfitted.sampler)} "
                "makes none that causal rows judge. Use sampler=linear_spec cache=linear_spec, or set it to null."
            )
        ranks = int(model.get("tp", 1))  # a trace's settings name none
        kinds = Kinds(model["quantize"], model["quantize_head"], model.get("activations"))  # which a trace may lack
        place = Residence(
            dtype, device, str(config["kernels"]), config["runtime"] not in COMPILED, ranks, model.get("memory_gib")
        )
        kind, head, rows = settled_kinds(architecture, kinds, place, model["adapter"])
        check_numbers(architecture, dtype, device, config["kernels"], kind, head, rows)
        check_invariant(str(config["kernels"]), kind, str(config["runtime"]), rows)
        check_runtime(kind, config["runtime"], device, rows)
        check_cut(architecture, ranks, bool(model.get("ep", False)), kind, head)
        check_ranks(ranks, unfitted.cache, str(config["runtime"]))
        parts = unfitted.fitted(checkpoint, options.gen_length)
        runtime_of(config).check(parts, architecture, device)
        if tokenizer is None and options.stop:
            raise UserError(f"stop={options.stop} needs text, and model {prompts.name} has no tokenizer. Drop it.")
        calibration_file = model["calibration"]
        calibration = {} if calibration_file is None else read_calibration(calibration_file, checkpoint.name)
        plan = RunPlan(config, options, parts, sampling, prompts, checkpoint.path, constraint_of(config), calibration)
        if plan.constraint is not None:
            plan.check_constraint()
        return plan

    def check_constraint(self) -> None:
        """Raise UserError for a constraint that cannot be compiled, and, in a conversation, whose shortest text is
        longer than an answer."""
        assert self.constraint is not None
        refuse_stop(self.options.stop)
        refuse_budget(self.sampling.thinking_budget)
        self.constraints.compiled(self.constraint)
        if self.options.chat:
            answer = Request.answer([0], self.options.gen_length, self.prompts.ids.placeholder)
            self.check_request(replace(answer, constraint=self.constraint))

    @cached_property
    def constraints(self) -> Constraints:
        """What constraints mean for the model."""
        prompts = self.prompts
        size, sampling = prompts.config.vocab, self.sampling
        return Constraints(prompts.tokenizer, size, prompts.ids, sampling.forbid_eos, prompts.name, sampling.min_tokens)

    def check_request(self, request: Request) -> None:
        """Raise UserError where a request's constraint leaves it no text."""
        if request.constraint is not None:
            refuse_stop(self.options.stop)
            self.constraints.row(request)

    def samples(self) -> list[PlannedSample]:
        samples = planned_samples(self.entries(), self.prompts, self.options.samples, self.options.seed)
        for sample in samples:
            self.check_request(sample.request)
        return samples

    def entries(self) -> list[PromptEntry]:
        if self.options.prompts is not None:
            return prompt_entries(Path(self.options.prompts), self.prompts, self.constraint, self.check_request)
        default = self.config["model"].get("prompt") or ""
        prompt = default if self.options.prompt is None else self.options.prompt
        if "\\n" in prompt and "\n" not in prompt:
            complain("The prompt holds \\n as two letters. If a new line is meant, write prompt=$'...' in the shell.")
        return [PromptEntry(0, "1", prompt, prompt, self.constraint)]

    def decoder(self, model: bundle.Model) -> Decoder:
        parts, options = self.parts, self.options
        return Decoder(
            model,
            parts.sampler,
            parts.blocks,
            parts.cache,
            parts.eos,
            gen_length=options.gen_length,
            batch_size=options.batch_size,
            sampling=self.sampling,
            stop=options.stop,
            chat=options.chat,
            runtime=runtime_of(self.config),
            constraint=self.constraint,
            length=parts.length,
            chat_template_kwargs=self.prompts.chat_template_kwargs,
        )

    def load(self) -> bundle.Model:
        loaded = bundle.load(**weights_of(self.config))
        spare_threads(loaded.transformer)
        return loaded

    def refuse_folder(self) -> None:
        """Raise UserError when the run's folder is there and belongs to another configuration."""
        if self.options.resume is not None or self.options.name is not None:
            refuse_other(folder_of(self.options), self.config, self.content())

    def content(self) -> dict[str, str]:
        """Hashes of what the settings only name: the checkpoint with its adapter, the code of parts and task."""
        groups = ("sampler", "blocks", "cache", "eos", "length", "task")
        targets_by_group = {group: list(targets(self.config.get(group, {}))) for group in groups}
        codes = {f"{group}'s code": code_hash(names) for group, names in targets_by_group.items() if names}
        adapters = [self.config["model"][name] for name in ("adapter", "draft_adapter")]
        prints = [fingerprint(Path(path)) for path in adapters if path is not None]
        return {"checkpoint": fingerprint(self.path) + "".join(f" + {value}" for value in prints), **codes}

    def open_folder(self, samples: Sequence[PlannedSample]) -> RunFolder:
        """The run's folder, new or resumed. Raises UserError when it holds a sample of another prompt or seed."""
        content = self.content()  # before a new folder is made: it may refuse
        run_folder = RunFolder.open(folder_of(self.options), self.config, content)
        requests = {sample.key: sample.request for sample in samples}
        for row in run_folder.rows:
            request = requests.get(key_of(row))
            if request is None:
                continue
            identity = (list(request.tokens[: request.answer_start]), request.seed, constraint_digest(request))
            if identity != (row["prompt_tokens"], row["seed"], row.get("constraint_digest")):
                raise UserError(
                    f"{run_folder.path} decoded {row['id']!r} from another prompt or seed, or under another constraint."
                    " Lines of prompts may be mended or added at the end; for other prompts start a new run."
                )
        return run_folder


def folder_of(options: Options) -> Path:
    """resume=FOLDER, output/name, or a new folder named by the time."""
    if options.resume is not None:
        return Path(options.resume)
    if options.name is not None:
        return Path(options.output) / options.name
    return fresh_folder(Path(options.output))


def weights_of(config: Mapping[str, Any], device: str | None = None) -> dict[str, Any]:
    """The arguments of ``bundle.load``. device: an engine's choice; None: the configuration's.

    Weights are packed unless ``runtime=compile``, whose compiler cannot look into packed ones.
    """
    model = config["model"]
    place = {name: str(model[name]) for name in ("path", "device", "dtype")}
    tp = int(model.get("tp", 1))  # a trace's settings name no ranks
    if tp > 1 and place["device"] == "auto":
        place["device"] = "cuda" if torch.cuda.is_available() else "cpu"  # each rank has one
    names = ("quantize", "quantize_head", "adapter", "draft_adapter")
    more = {
        **{name: model[name] for name in names},
        **{name: model.get(name) for name in ("activations", "memory_gib")},
        **describe_arguments(model),
        "rope": RopeSetting.of(model.get("rope")),
    }
    runtime = {
        "kernels": str(config["kernels"]),
        "pack": config["runtime"] not in COMPILED,
        "tp": tp,
        "ep": bool(model.get("ep", False)),
    }
    return {**place, **more, **runtime, **({} if device is None else {"device": device})}


def constraint_of(config: Mapping[str, Any]) -> Constraint | None:
    """The constraint of every text; None where each question has its own. Raises UserError for one that questions
    should bring where the task has none, and for a wrong option."""
    constraint = build_part("constraint", config["constraint"], per_request=False)
    if not isinstance(constraint, TaskConstraint):
        return constraint
    if "_target_" not in config["task"]:
        raise UserError(
            f"constraint=from_task is what each question says of its answer, and task={config['task']['name']} has no "
            "questions. Choose a task that has, or give the constraint itself."
        )
    return None


def runtime_of(config: Mapping[str, Any]) -> Runtime:
    """The chosen runtime. Raises UserError for one that does not exist."""
    lag = config["lag"]
    return Runtime(config["runtime"], None if lag is None else coerce("lag", lag, "int"))


def spare_threads(network: Transformer) -> None:
    """One thread for a network of a few million parameters on a CPU, unless OMP_NUM_THREADS says otherwise.

    Its operations take microseconds. On two cores mini-llada's 32 forwards take 67 ms with one thread, 75 ms with two,
    and with two threads and a busy neighbour 180 to 680 ms, since each operation waits for the slower thread.
    """
    if network.device.type != "cpu" or "OMP_NUM_THREADS" in os.environ:
        return
    if parameter_count(network, network.config) < SMALL_MODEL:
        torch.set_num_threads(1)
