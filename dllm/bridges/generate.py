"""transformers' ``generate`` with our loop: ``model.generate(ids, custom_generate=custom_generate, sampler="eb")``.

The network is ours on that model's own weights, without a copy (``dllm.models.shared``). What transformers prepares of
an autoregressive decode (processors of logits, caches, masks of attention) is read for what it asks, or refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from dllm.common.errors import UserError, nearest
from dllm.compose.parts import part
from dllm.constraints.kinds import Constraint
from dllm.decoder import Decoder
from dllm.models.bundle import Model, load
from dllm.record.results import Result

# Processors and criteria whose numbers are read from the generation config.
_READ = ("TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MaxLengthCriteria", "EosTokenCriteria")
_NOT_TOLD = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_LENGTH = 20  # tokens after a prompt where no length is given, as in transformers
_MOST_DRAWN = 2**31  # seeds that are drawn are below


def custom_generate(
    model: nn.Module, input_ids: Tensor, logits_processor: Sequence[Any] | None = None,
    stopping_criteria: Sequence[Any] | None = None, generation_config: Any = None, *,
    sampler: Any = "confidence", blocks: Any = "fixed", cache: Any = "none", eos: Any = "fill_after_block",
    threshold: float | None = None, steps: int | None = None, block_length: int | None = None,
    seed: int | None = None, runtime: str = "auto", constraint: Constraint | None = None,
    stop: Sequence[str] = (), text_tokenizer: Any = None, text_streamer: Any = None, results: bool = False,
    mask_id: int | None = None, attention_block: int | None = None, **model_kwargs: Any,
) -> Any:  # fmt: skip
    """Decode as ``generate`` of transformers does, which hands its preparations on; or call it directly, where a
    published class has no such ``generate``.

    Args:
        model: an object of a known family, as ``load`` takes it.
        input_ids: [B, P], padded on the left where ``attention_mask`` is 0. Rows are decoded together.
        logits_processor, stopping_criteria: of length, end, temperature, top_k and top_p.
        generation_config: length, ends, padding, ``do_sample`` and its numbers; None: the model's own.
        sampler, blocks, cache, eos: as in ``Decoder``. threshold, steps, block_length: of sampler and blocks.
        seed: of the first row; the others follow. None: 0, or drawn where tokens are.
        runtime, constraint, stop: as in ``Decoder``; texts need ``text_tokenizer``.
        text_tokenizer: transformers' tokenizer. text_streamer: has one row's ids at its end (``streamer`` of
            ``generate`` is not handed on).
        results: return our results instead.
        mask_id, attention_block: as in ``load``.
        model_kwargs: ``attention_mask`` [B, P], ones and zeros on the left of them; in a direct call
            ``max_new_tokens``, masks after the prompts. What else transformers prepares is not used.

    Returns:
        Ids [B, P + longest answer], padded on the right; an object with ``sequences`` under
        ``return_dict_in_generate``; a list of results if asked for.

    Raises:
        UserError: what an autoregressive decode alone could do, and as ``load`` and ``Decoder``.
    """
    settings = generation_config if generation_config is not None else getattr(model, "generation_config", None)
    _refuse(model, settings, [*(logits_processor or ()), *(stopping_criteria or ())])
    if generation_config is None:
        _refuse_unknown_keywords(model_kwargs)
    rows = _prompts(input_ids, model_kwargs.get("attention_mask"))
    loaded = _ended(load(model, text_tokenizer, mask_id=mask_id, attention_block=attention_block), settings)
    decoder = Decoder(
        loaded,
        _part("sampler", sampler, {"threshold": threshold, "steps": steps}),
        _part("blocks", blocks, {"block_length": block_length}),
        cache,
        eos,
        stop=stop,
        batch_size=len(rows),
        gen_length=_length(settings, input_ids.shape[1], model_kwargs.get("max_new_tokens")),
        runtime=runtime,
        constraint=constraint,
        **_drawing(settings),
    )
    drawn = getattr(settings, "do_sample", False)
    first = seed if seed is not None else secrets.randbelow(_MOST_DRAWN) if drawn else 0
    requests = [decoder.request(row, first + number) for number, row in enumerate(rows)]
    by_number = dict(decoder.run(requests))
    answers = [by_number[number] for number in range(len(requests))]
    if text_streamer is not None:
        _stream(text_streamer, input_ids, answers, loaded)
    return answers if results else _returned(settings, _joined(input_ids, answers, loaded, settings))


def _refuse(model: nn.Module, settings: Any, processors: Sequence[Any]) -> None:
    """Raise UserError for what is not served."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise UserError(f"{type(model).__name__} is an encoder with a decoder, and a masked decode has one network.")
    for processor in processors:
        if type(processor).__name__ not in _READ:
            raise UserError(
                f"{type(processor).__name__} works from left to right, one token at a time, and a masked decode "
                "does not. Drop it; constraint=... says what a text must be."
            )
    if (beams := getattr(settings, "num_beams", 1) or 1) > 1:
        raise UserError(f"num_beams={beams} must be 1: there is no beam search.")
    for name in _NOT_TOLD:
        if getattr(settings, name, False):
            raise UserError(f"{name}=True is not served. Drop it; results=True returns what is known of each decode.")


def _refuse_unknown_keywords(keywords: Mapping[str, Any]) -> None:
    """Raise UserError for keywords of a direct call that mean nothing; ``generate`` refuses its own."""
    names = [*signature(custom_generate).parameters][5:-1] + ["attention_mask", "max_new_tokens"]
    for name in keywords:
        if name not in names:
            raise UserError(f"custom_generate has no argument {name!r}.{nearest(name, names)}")


def _prompts(input_ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    """The ids of each prompt, without its padding."""
    if input_ids.ndim != 2:
        raise UserError(f"input_ids has the shape {list(input_ids.shape)}, and must be [rows, tokens].")
    visible = torch.ones_like(input_ids) if mask is None else mask
    if (
        visible.shape != input_ids.shape
        or bool((visible[:, 1:] < visible[:, :-1]).any())
        or not bool(visible.any(1).all())
    ):
        raise UserError(
            'attention_mask must be zeros on the left of each prompt and ones over it: pad with padding_side="left".'
        )
    return [row[columns.bool()].tolist() for row, columns in zip(input_ids, visible, strict=True)]


def _ended(model: Model, settings: Any) -> Model:
    """The model whose texts end where the generation config says."""
    ends = getattr(settings, "eos_token_id", None)
    own = ends.tolist() if isinstance(ends, Tensor) else ends
    stops = [own] if isinstance(own, int) else list(own or ())
    if not stops:
        return model
    return replace(model, ids=replace(model.ids, eos=stops[0], stops=tuple(stops)))


def _part(group: str, choice: Any, options: Mapping[str, Any]) -> Any:
    """A part with the options that are given beside it."""
    own = {name: value for name, value in options.items() if value is not None}
    if own and not isinstance(choice, str):
        raise UserError(f"{next(iter(own))} goes with {group} by its name. Give it to part({group!r}, ...).")
    return part(group, choice, **own) if own else choice


def _length(settings: Any, prompt: int, length: int | None) -> int:
    """Masks after prompts of that many columns."""
    total, own = getattr(settings, "max_length", None), getattr(settings, "max_new_tokens", None)
    most = length or own or (_LENGTH if total is None else total - prompt)
    if most < 1:
        raise UserError(f"max_length={total} leaves nothing after prompts of {prompt} tokens. Give max_new_tokens.")
    return int(most)


def _drawing(settings: Any) -> dict[str, Any]:
    """How tokens are proposed: drawn under ``do_sample``, else the likeliest."""
    if not getattr(settings, "do_sample", False):
        return {"temperature": 0.0}
    temperature, top_k, top_p = (getattr(settings, name, None) for name in ("temperature", "top_k", "top_p"))
    warm = 1.0 if temperature is None else float(temperature)
    return {"temperature": warm, "top_k": top_k or None, "top_p": None if top_p == 1.0 else top_p}


def _answer(result: Result, model: Model) -> list[int]:
    """The ids of an answer with its end of text, as transformers returns them."""
    count = len(result.tokens)
    ended = count < len(result.canvas) and result.canvas[count] in model.ids.ends
    return result.canvas[: count + ended]


def _joined(input_ids: Tensor, results: Sequence[Result], model: Model, settings: Any) -> Tensor:
    """Prompts and answers, [B, P + longest]."""
    answers = [_answer(result, model) for result in results]
    own = getattr(settings, "pad_token_id", None)
    pad, longest = model.ids.eos if own is None else int(own), max(map(len, answers))
    rows = [answer + [pad] * (longest - len(answer)) for answer in answers]
    return torch.cat((input_ids, torch.tensor(rows, dtype=input_ids.dtype, device=input_ids.device)), dim=1)


def _stream(streamer: Any, input_ids: Tensor, results: Sequence[Result], model: Model) -> None:
    if len(results) > 1:
        raise UserError(f"text_streamer takes one prompt, and there are {len(results)}. Drop it, or give one.")
    streamer.put(input_ids.cpu())
    streamer.put(torch.tensor(_answer(results[0], model)))
    streamer.end()


def _returned(settings: Any, sequences: Tensor) -> Any:
    if not getattr(settings, "return_dict_in_generate", False):
        return sequences
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    return GenerateDecoderOnlyOutput(sequences=sequences)  # type: ignore[arg-type]
