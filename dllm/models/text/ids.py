"""The ids of mask, end-of-text and padding: from the argument, config.json or the tokenizer, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dllm.common.coerce import is_whole
from dllm.common.errors import Refusal, Set
from dllm.models.config import ModelConfig
from dllm.models.text.tokenizer import Tokenizer
from dllm.models.weights.files import mismatched


@dataclass(frozen=True)
class Ids:
    """The special ids that decoding needs: MASK, and those that end a text (EOS, end of turn)."""

    mask: int | None  # an undecided position (None: undecided positions show noise)
    eos: int  # the end of a text
    stops: tuple[int, ...]  # all that end an answer, EOS among them
    marks: bool = False  # the mask is no token: it lies outside the vocabulary, and only marks undecided columns

    @property
    def ends(self) -> tuple[int, ...]:
        """All that end a text, each once."""
        return tuple(dict.fromkeys((self.eos, *self.stops)))

    @property
    def placeholder(self) -> int:
        """What a request holds where it is undecided: the mask; where noise will lie instead, the end of the text."""
        return self.eos if self.mask is None else self.mask

    def banned(self, suppress_mask: bool, forbid_eos: bool) -> tuple[int, ...]:
        """Those that are never proposed under these settings of ``Sampling``."""
        return self.mask_tokens * suppress_mask + self.ends * forbid_eos

    @property
    def mask_tokens(self) -> tuple[int, ...]:
        """The mask, where it is a token of the vocabulary."""
        return () if self.mask is None or self.marks else (self.mask,)


@dataclass(frozen=True)
class SourcedId:
    """A token id and its source, as an error message prints them."""

    name: str  # where it is
    id: int  # of the token

    def __str__(self) -> str:
        return f"{self.name}={self.id}"


def resolve_ids(
    config: ModelConfig, tokenizer: Tokenizer | None, mask_id: int | None, ends: Sequence[int] = ()
) -> tuple[ModelConfig, Ids]:
    """The config with its ids filled in, and the ids that proposing needs. ends: what generation_config.json says ends
    a text. Raises UserError as ``bundle.describe``."""
    if tokenizer is not None and len(tokenizer) > config.vocab:
        problem = f"the tokenizer has {len(tokenizer)} ids, the model's logits only {config.vocab} columns"
        raise mismatched(problem, "tokenizer and weights")
    marks, name = config.attention.next_token, config.architecture
    if mask_id is not None and (marks or config.process == "uniform"):
        why = f"{name} predicts the next token, and" if marks else f"undecided positions of {name} show noise, so it"
        raise Refusal(f"{{model.mask_id}}: {why} has no mask token.", [mask_id], [Set("model.mask_id", None)])
    mask = None if config.process == "uniform" or marks else _mask(config, tokenizer, mask_id)
    generation = [SourcedId("generation_config.json: eos_token_id", end) for end in ends]
    eos = generation[0] if ends and config.gemma is not None else _eos(config, tokenizer)  # its class reads no other
    pad = eos if config.pad_id is None else SourcedId("config.json: pad_token_id", config.pad_id)
    config_ends = [SourcedId("config.json: eos_token_id", end) for end in config.ends]
    words = [SourcedId("the tokenizer's ends of a text", stop) for stop in (tokenizer.stop_ids if tokenizer else ())]
    extra = [*(generation or config_ends), *words]
    for source in (eos, pad, *extra):
        _check_range(source, config, "Correct it there.")
    if mask is not None:
        _check_mask(mask, eos.id, pad.id, config, tokenizer)
    stops = dict.fromkeys([eos.id, *(stop.id for stop in extra)])
    number = config.vocab if marks else None if mask is None else mask.id
    ids = Ids(number, eos.id, tuple(stop for stop in stops if stop != number), marks)
    return replace(config, mask_id=number, eos_id=eos.id, pad_id=pad.id), ids


def _check_range(source: SourcedId, config: ModelConfig, advice: str) -> None:
    if not 0 <= source.id < config.vocab:
        raise Refusal(f"{source} lies outside the embedding's ids, 0 to {config.vocab - 1}. {advice}")


def _first(candidates: Mapping[str, int | None], missing: str) -> SourcedId:
    """The id of the first source that has one. Raises UserError, which says ``missing``, if none has."""
    for name, number in candidates.items():
        if number is not None:
            return SourcedId(name, number)
    raise Refusal(missing)


def _mask(config: ModelConfig, tokenizer: Tokenizer | None, mask_id: int | None) -> SourcedId:
    if mask_id is not None and not is_whole(mask_id):
        raise Refusal("{model.mask_id:quoted} must be an integer, the id of the mask token.", [mask_id])
    usual = config.usual_mask_id
    if mask_id is None and config.mask_id is None and usual is not None and tokenizer is not None:
        text = tokenizer.token(usual)
        if tokenizer.mask_id is None and text is not None and usual not in tokenizer.special_ids:
            raise Refusal(
                f"{{model.mask_id=null}}: the mask of {config.architecture} is usually id {usual}, but the tokenizer "
                f"has no mask token, and {usual} is its {text!r}. Set {{model.mask_id=ID}}."
            )
    return _first(
        {
            "{model.mask_id:name}": mask_id,
            "config.json: mask_token_id": config.mask_id,
            "the tokenizer's mask token": tokenizer.mask_id if tokenizer else None,
            "the family's usual mask_token_id": config.usual_mask_id,
        },
        "{model.mask_id=null}: neither config.json (mask_token_id) nor the tokenizer names a mask token, which masked "
        "diffusion needs. Set {model.mask_id=ID}.",
    )


def _eos(config: ModelConfig, tokenizer: Tokenizer | None) -> SourcedId:
    return _first(
        {
            "config.json: eos_token_id": config.eos_id,
            "the tokenizer's eos_token": tokenizer.eos_id if tokenizer else None,
            "config.json: pad_token_id": config.pad_id,
        },
        "eos_token_id=null: neither config.json nor the tokenizer names the token that ends a text. "
        "Add eos_token_id to config.json.",
    )


def _check_mask(mask: SourcedId, eos: int, pad: int, config: ModelConfig, tokenizer: Tokenizer | None) -> None:
    advice = "Set the right one by {model.mask_id=ID}."
    _check_range(mask, config, advice)
    if tokenizer is not None and tokenizer.token(mask.id) is None:
        hint = "" if tokenizer.mask_id is None else f" Its own mask token has id {tokenizer.mask_id}."
        raise Refusal(f"{mask} is not a token of the tokenizer, which has {len(tokenizer)} tokens.{hint} {advice}")
    for name, number in (("pad", pad), ("eos", eos)):
        if mask.id == number:
            raise Refusal(f"{mask} is also the {name} id: masks and {name} tokens must differ. {advice}")
