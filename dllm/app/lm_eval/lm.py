"""``dllm`` as a model of lm-evaluation-harness: Decoder generates, ``dllm.scoring.decisions.likelihood`` scores.

Written for lm-eval 0.4.13. It is found under its name through the entry point group ``lm_eval.models`` (releases
after 0.4.13), or through ``python -m dllm.app.lm_eval``, which takes the same arguments as ``lm_eval``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import lm_eval.models  # noqa: F401  registers lm-eval's own, which 0.4.13 does only while it knows no model at all
import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from dllm.app.lm_eval.configuration import composed_settings
from dllm.app.runs.destinations import writing
from dllm.app.runs.plan import RunPlan, weights_of
from dllm.common.digest import seed_from
from dllm.common.errors import UserError
from dllm.compose.trusted import describe_arguments
from dllm.decoder import Decoder
from dllm.models.bundle import describe, load
from dllm.prompts import Message, Prompts
from dllm.record.results import Result
from dllm.scoring.decisions.likelihood import Estimate, Estimator, Likelihood


@register_model("dllm")  # type: ignore[untyped-decorator]
class DLLM(TemplateLM):  # type: ignore[misc]
    """model_args are the settings of ``python run.py`` (model=..., sampler=..., sampler.threshold=0.8), and:

    likelihood, mc_num, mc_batch, mc_seed, cfg: of ``dllm.scoring.decisions``. add_bos_token: before every context
    that lacks it. escape_until: ignore the task's stop strings (Dream's setting for code). records: a JSON-lines file
    for what each request cost. gen_length overrides the task's max_gen_toks. ``--gen_kwargs`` may hold settings too.

    max_batch_size is not read: lm-eval gives it to every model, for sizes that it finds itself.

    ``records`` in Python: what each request cost, by (task, document, repeat or choice). Answers that lm-eval takes
    from its own cache are not in it.
    """

    def __init__(
        self,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        device: str | None = None,
        likelihood: str = "mc_count",
        mc_num: int = 128,
        mc_batch: int = 8,
        mc_seed: int = 1234,
        cfg: float = 0.0,
        add_bos_token: bool = False,
        escape_until: bool = False,
        records: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        estimator = Estimator(likelihood, mc_num, min(mc_batch, mc_num), cfg, mc_seed)
        self.settings = {"batch_size": whole_batch_size(batch_size), **settings, **device_setting(device, settings)}
        self.add_bos, self.escape_until = add_bos_token, escape_until
        config = composed_settings(self.settings)
        if settings.get("gen_length"):  # else the tasks say how long answers are, and their plans are checked then
            self._plan(RequestGroup(int(settings["gen_length"]), (), ()))
        model, self.seed = config["model"], int(config["seed"])
        description = describe(model["path"], **describe_arguments(model))
        tokenizer = description.tokenizer
        self.prompts = Prompts(
            description.config, tokenizer, description.ids, str(model["path"]), MAX_GEN_TOKS, chat=False
        )
        if tokenizer is None:
            raise UserError(f"model {model['path']} has no tokenizer, and lm-eval speaks text. Choose another.")
        self.backbone = tokenizer
        self.bundle = load(**weights_of(config))
        self.likelihood = Likelihood(self.bundle, estimator)
        self.decoders: dict[RequestGroup, Decoder] = {}
        self.records: dict[RequestKey, dict[str, Any]] = {}
        self.file = None if records is None else Path(records).expanduser()
        self.estimates: list[Estimate] = []

    def _plan(self, group: RequestGroup) -> RunPlan:
        """Raises UserError for what cannot work."""
        config = composed_settings({**self.settings, **dict(group.settings)})
        return RunPlan.of({**config, "gen_length": group.length, "stop": list(group.stop)})

    @property
    def eot_token_id(self) -> int:
        return self.prompts.ids.eos

    @property
    def prefix_token_id(self) -> int:
        """What is before a text that has no context: the BOS where there is one."""
        bos = self.backbone.special_tokens.get("bos_token")
        bos_id = None if bos is None else self.backbone.backend.token_to_id(bos)
        return self.eot_token_id if bos_id is None else bos_id

    @property
    def max_length(self) -> int:
        return self.prompts.config.max_length

    @property
    def tokenizer_name(self) -> str:
        return self.prompts.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self.backbone.template if chat_template else None

    def apply_chat_template(self, chat_history: list[Message], add_generation_prompt: bool = True) -> str:
        """The conversation as text; without a generation prompt the last message is the answer's beginning."""
        if add_generation_prompt:
            return self.backbone.render(chat_history)
        return self.backbone.render(chat_history[:-1]) + chat_history[-1]["content"]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        # The harness hands over one text, in which the template's words and the question's are no longer apart.
        tokens = self.backbone.encode(string, special=True)
        bos = self.add_bos and add_special_tokens is not False and tokens[:1] != [self.prefix_token_id]
        return [self.prefix_token_id, *tokens] if bos else tokens

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers in the order of the requests; those with the same settings are decoded together."""
        keys, groups = request_keys(requests), dict[RequestGroup, list[int]]()
        for number, request in enumerate(requests):
            group = RequestGroup.of(request.args[1], self.settings.get("gen_length"), self.escape_until)
            groups.setdefault(group, []).append(number)
        answers = [""] * len(requests)
        with tqdm(total=len(requests), disable=disable_tqdm, unit="sample") as bar:
            for group, numbers in groups.items():
                for number, result in self._decode(group, [(n, keys[n], requests[n].args[0]) for n in numbers]):
                    answers[number] = result.text
                    self._note(keys[number], result.to_json())
                    self.cache_hook.add_partial("generate_until", requests[number].args, result.text)
                    bar.update()
        return answers

    def _decode(self, group: RequestGroup, todo: Sequence[tuple[int, RequestKey, str]]) -> Iterator[tuple[int, Result]]:
        decoder = self.decoders.get(group) or self._plan(group).decoder(self.bundle)
        requests = [decoder.request(self.tok_encode(text), request_seed(self.seed, key)) for _, key, text in todo]
        if group not in self.decoders:  # a forward that warms up, so that first-time costs are not counted
            self.decoders[group] = decoder
            next(decoder.turns(requests[0]), None)
        for at, result in decoder.run(requests):
            yield todo[at][0], result

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        self.estimates = []
        values = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        for request, estimate in zip(requests, self.estimates, strict=True):
            key = (str(request.task_name), int(request.doc_id or 0), int(request.idx))
            self._note(key, {"nfe": estimate.forwards, "query_tokens": estimate.query_tokens, "value": estimate.value})
        return list(values)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Estimates in order; choices after the same context are compared together. Never claims to be greedy."""
        with tqdm(total=len(requests), disable=disable_tqdm, unit="text") as bar:
            for context, same in groupby(requests, key=lambda request: request[1]):
                targets = [target for _, _, target in same]
                self.estimates += self.likelihood.compare(context, targets)
                bar.update(len(targets))
        return [(estimate.value, False) for estimate in self.estimates[-len(requests) :]]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The likelihood of whole texts, in windows of the model's length where they are longer."""
        totals = []
        for request in tqdm(requests, disable=disable_tqdm, unit="text"):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            room = self.max_length - 2  # the prefix, and the EOS of mc_bernoulli
            windows = get_rolling_token_windows(tokens, self.prefix_token_id, room, 1)
            estimates = [self.likelihood(*make_disjoint_window(window)) for window in windows]
            totals.append(sum(estimate.value for estimate in estimates))
        return totals

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval adds to its results: the settings, and what generation cost."""
        decoded = [record for record in self.records.values() if "useful_tokens" in record]
        tokens, nfe, seconds = (sum(record[key] for record in decoded) for key in ("useful_tokens", "nfe", "seconds"))
        return {
            "dllm": {
                "settings": self.settings,
                "likelihood": vars(self.likelihood.estimator),
                "samples": len(decoded),
                "useful_tokens": tokens,
                "nfe": nfe,
                "tpf": tokens / nfe if nfe else None,
                "seconds": seconds,
            }
        }

    def _note(self, key: RequestKey, record: dict[str, Any]) -> None:
        self.records[key] = record
        if self.file is not None:
            task, document, number = key
            line = json.dumps({"task": task, "doc_id": document, "number": number, **record}, ensure_ascii=False)
            with writing(self.file), self.file.open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")


MAX_GEN_TOKS = 256  # lm-eval's default, and the field's for instruct models
SAMPLING_KWARGS = ("temperature", "top_p", "top_k")

RequestKey = tuple[str, int, int]  # task, number of the document, number of the repeat or of the choice


@dataclass(frozen=True)
class RequestGroup:
    """What requests that are decoded together have in common."""

    length: int  # tokens of the answer
    stop: tuple[str, ...]  # strings that end it
    settings: tuple[tuple[str, Any], ...]  # of ours, by name

    @staticmethod
    def of(options: Mapping[str, Any], length: int | None, escape_until: bool) -> RequestGroup:
        """From a request's gen_kwargs, which may hold settings of ours too. ``length`` overrides max_gen_toks.

        temperature, top_p and top_k count only with do_sample, since tasks that want greedy answers set them too.
        """
        rest = dict(options)
        until, sampled = rest.pop("until", None) or [], bool(rest.pop("do_sample", False))
        length = length or rest.get("max_gen_toks", MAX_GEN_TOKS)
        for name in (*SAMPLING_KWARGS, "max_gen_toks"):
            value = rest.pop(name, None)
            if sampled and value is not None and name in SAMPLING_KWARGS:
                rest[f"sampling.{name}"] = value
        stop = () if escape_until else tuple([until] if isinstance(until, str) else until)
        return RequestGroup(int(length or MAX_GEN_TOKS), stop, tuple(sorted(rest.items())))


def request_keys(requests: Sequence[Any]) -> list[RequestKey]:
    """Each request's key. lm-eval hands in a repeated request several times, which the key numbers."""
    counts: Counter[tuple[str, int]] = Counter()
    keys = []
    for request in requests:
        place = str(request.task_name), int(request.doc_id or 0)
        keys.append((*place, counts[place]))
        counts[place] += 1
    return keys


def request_seed(seed: int, key: RequestKey) -> int:
    """A request's seed depends on the run's seed, the task, the document and the repeat, not on the order."""
    return seed_from(f"{seed}/{key}")


def whole_batch_size(batch_size: int | str) -> int:
    """lm-eval's batch_size. Raises UserError for ``auto`` and the like."""
    if not str(batch_size).isdigit():
        raise UserError(f"batch_size={batch_size!r} must be a whole number: dllm does not search for one by itself.")
    return int(batch_size)


def device_setting(device: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval's device as our setting. Its default is cuda:0; without CUDA the model's own setting stays."""
    if device is None or "model.device" in settings or (device.startswith("cuda") and not torch.cuda.is_available()):
        return {}
    return {"model.device": device}
