"""Text to token ids and back, from a checkpoint's own data files. No code of a checkpoint is ever executed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from tokenizers import Tokenizer as Backend

from dllm.common.errors import TooLong, UserError, first_line
from dllm.models.config import FAMILIES
from dllm.models.families import Family
from dllm.models.keys import read_keys
from dllm.models.network.masked_lm_class import MASKED_LM
from dllm.models.text.chat_template import (
    ThoughtMarks,
    compile_template,
    parse_template,
    render_messages,
    shared_budget,
    template_names,
    thought_marks,
)
from dllm.models.text.chat_tokens import ChatTokens
from dllm.models.text.least_tokens import LeastTokens
from dllm.models.text.pieces import alone, pieces_of
from dllm.models.text.spelling import encode_text, plain_pieces, without_prefix
from dllm.models.text.tokenizer_files import (
    SPECIAL_TOKEN_KEYS,
    TOKENIZER,
    backend_of,
    generation_ends,
    special_ids_of,
    special_tokens_of,
    templates_by_name,
    templates_of,
    tokenizer_settings,
)
from dllm.models.weights.files import broken

_FAMILIES = (*FAMILIES.values(), MASKED_LM)
STOP_TOKENS = tuple(text for family in _FAMILIES for text in family.stop_tokens)
MASK_TOKENS = tuple(text for family in _FAMILIES for text in family.mask_tokens)
PROBE = "Ab 1 ∑"  # encoded once at loading, where a vocabulary without its own unknown token fails


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A checkpoint's tokenizer with the ids that masked diffusion needs."""

    backend: Backend  # of the ``tokenizers`` package
    special_tokens: Mapping[str, str]  # text by key (``bos_token``, ``eos_token``, ...), as far as the files give them
    template: str | None  # of a conversation, in Jinja; None: the files have none
    mask_id: int | None  # the mask; None: the files name none
    eos_id: int | None  # the end of a text; None: the files name none
    stop_ids: tuple[int, ...]  # they end an answer
    # left out of decoded text; MASK and the stop ids are among them, even where the published file does not mark them
    # as special (SDAR's ``<|MASK|>``)
    special_ids: frozenset[int]
    size: int  # one more than the largest id
    opening: tuple[int, ...] = ()  # ids before a text outside of a chat template (a GGUF file's ``add_bos_token``)
    tool_template: str | None = None  # of a conversation with tools; None: it has none of its own

    @staticmethod
    def present(folder: Path) -> bool:
        """Whether the folder holds tokenizer files at all."""
        return any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json"))

    @staticmethod
    def from_folder(folder: Path) -> Tokenizer:
        """Read tokenizer.json, or vocab.json and merges.txt (Dream). Raises UserError for missing or broken files."""
        settings = tokenizer_settings(folder)
        backend = backend_of(folder, settings)
        encode_text(backend, PROBE)
        file, templates = templates_of(folder, settings)
        return Tokenizer._of(backend, settings, templates, generation_ends(folder), file)

    @staticmethod
    def assembled(
        backend: Backend, special_tokens: Mapping[str, str], templates: Any, ends: Sequence[int], file: Path
    ) -> Tokenizer:
        """From its parts. special_tokens: text by key. templates: by name, or the only one. ends: ids that end an
        answer. file: what they come from. Raises UserError for what is no template, or a vocabulary without bytes."""
        by_name = templates_by_name(templates)
        if not all(isinstance(template, str) for template in by_name.values()):
            raise broken(f"{file} holds a chat_template that is not text")
        backend.no_truncation()
        backend.no_padding()
        encode_text(backend, PROBE)
        settings = {**read_keys(TOKENIZER, {}, ""), **special_tokens}
        return Tokenizer._of(backend, settings, by_name, ends, file)

    @staticmethod
    def _of(
        backend: Backend,
        settings: Mapping[str, Any],
        templates: Mapping[str, str],
        more_ends: Sequence[int],
        file: Path,
    ) -> Tokenizer:
        special_tokens, vocabulary = special_tokens_of(settings), backend.get_vocab()
        marked = [special_tokens["mask_token"]] if "mask_token" in special_tokens else []
        mask = next((vocabulary[text] for text in (*marked, *MASK_TOKENS) if text in vocabulary), None)
        ends = tuple(dict.fromkeys([*(vocabulary[text] for text in STOP_TOKENS if text in vocabulary), *more_ends]))
        special_ids = special_ids_of(backend, vocabulary, special_tokens, settings)
        eos_text = special_tokens.get("eos_token", special_tokens.get("sep_token", ""))  # BERT's is [SEP]
        by_name = {name: templates.get(name) for name in ("default", "tool_use")}
        for template in filter(None, by_name.values()):
            _check_template(template, file)
        return Tokenizer(
            backend=backend,
            special_tokens=special_tokens,
            template=by_name["default"],
            mask_id=mask,
            eos_id=vocabulary.get(eos_text),
            stop_ids=tuple(end for end in ends if end != mask),
            special_ids=special_ids | {*ends, *([] if mask is None else [mask])},
            size=max(vocabulary.values(), default=-1) + 1,
            tool_template=by_name["tool_use"],
        )

    def knowing(self, family: Family | None) -> Tokenizer:
        """With the mask and the ends that a user's own family spells."""
        if family is None:
            return self
        vocabulary = self.backend.get_vocab()
        masks, ends = (
            [vocabulary[text] for text in some if text in vocabulary]
            for some in (family.mask_tokens, family.stop_tokens)
        )
        mask = masks[0] if masks else self.mask_id
        return replace(
            self,
            mask_id=mask,
            stop_ids=tuple(dict.fromkeys([*self.stop_ids, *ends])),
            special_ids=self.special_ids | {*masks[:1], *ends},
        )

    def save(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, from which ``from_folder`` reads the same."""
        self.backend.save(str(folder / "tokenizer.json"))
        both = {"default": self.template, "tool_use": self.tool_template}
        by_name = {name: text for name, text in both.items() if text is not None}
        template = {"chat_template": self.template if self.tool_template is None else by_name} if by_name else {}
        usual = {key: text for key, text in self.special_tokens.items() if key in SPECIAL_TOKEN_KEYS}
        more = {key: text for key, text in self.special_tokens.items() if key not in usual}
        extra = {"extra_special_tokens": more} if more else {}
        text = json.dumps({**usual, **extra, **template}, indent=1)
        (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(self.stop_ids)}) + "\n")

    def __len__(self) -> int:
        return self.size

    @property
    def has_chat_template(self) -> bool:
        return self.template is not None

    def token(self, number: int) -> str | None:
        """The string of an id. None: the tokenizer has no such id."""
        return self.backend.id_to_token(number) if number >= 0 else None

    def encode(self, text: str, special: bool = False, most: int | None = None, begins: bool = False) -> list[int]:
        """Ids of a text as it is, none added. What spells a special token in it stays text.

        special: special tokens written in the text are recognised, all but the mask, for which only a position to
        decide is; it is a whole prompt then. most: tokens that may come of it (None: any number), as far as its bytes
        tell. begins: it is the beginning of a whole prompt, before which some tokenizers put a space. Raises TooLong
        where it cannot have so few, before it is tokenized, and UserError where a special token is a single character,
        which no other tokens can write.
        """
        self._refuse_long(text, most)
        plain = self.special_ids.intersection([self.mask_id]) if special else self._spellable_ids
        first = self.backend if special or begins else self._inside
        return [token for _, ids in plain_pieces(first, text, plain, inside=self._inside) for token in ids]

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        begin: str = "",
        beside: Mapping[str, Any] | None = None,
        most: int | None = None,
    ) -> list[int]:
        """Ids of a conversation in the chat template, and of ``begin`` after it. beside: what else the template may
        read, such as ``tools``. Only the template's own text makes
        special tokens, whatever it does with a message: what spells one there stays text. most: as in ``encode``.
        Raises UserError as ``render`` and ``encode``."""
        with shared_budget():
            self._refuse_long(self.render(messages, beside) + begin, most)  # refuses what cannot be rendered, too
            *pieces, (last, spans) = self._chat_tokens[self._template_for(beside)].pieces(messages, beside)
        whole = [*pieces, (last + begin, spans)]
        first = [self.backend, *[self._inside] * len(pieces)]
        encoded = [
            plain_pieces(backend, text, self._spellable_ids, spans, self._inside)
            for backend, (text, spans) in zip(first, whole, strict=True)
        ]
        return [token for some in encoded for _, ids in some for token in ids]

    def _refuse_long(self, text: str, most: int | None) -> None:
        """Raise TooLong for a text whose bytes ``most`` tokens cannot all write."""
        if most is not None and len(text) > most and (least := self.least_tokens(text)) > most:
            raise TooLong(
                f"the prompt takes at least {least} tokens, more than the model's limit of {most}. Shorten it."
            )

    @cached_property
    def _inside(self) -> Backend:
        """What encodes texts that follow others."""
        return without_prefix(self.backend)

    @cached_property
    def least_tokens(self) -> LeastTokens:
        """How many tokens a text takes at least."""
        return LeastTokens.of(self.backend)

    @cached_property
    def _spellable_ids(self) -> frozenset[int]:
        """The special ids that a text can spell. A stop id may be an ordinary token, such as a line break."""
        return self.special_ids.intersection([*self.backend.get_added_tokens_decoder(), self.mask_id])

    @cached_property
    def _chat_tokens(self) -> Mapping[str, ChatTokens]:
        """By the text of each template."""
        templates = filter(None, (self.template, self.tool_template))
        return {text: ChatTokens(self.backend, self._spellable_ids, text, self.special_tokens) for text in templates}

    def _template_for(self, beside: Mapping[str, Any] | None) -> str:
        """The template of a conversation: with tools their own one, as in transformers. Raises UserError without."""
        with_tools = (beside or {}).get("tools") is not None and self.tool_template is not None
        template = self.tool_template if with_tools else self.template
        if template is None:
            raise UserError(
                "this tokenizer has no chat template (neither chat_template.jinja nor tokenizer_config.json gives "
                "one), so messages cannot be rendered. Pass the prompt as plain text, or use an instruct checkpoint."
            )
        return template

    def template_problem(self) -> str:
        """A sentence where a template writes neither a user's message nor one after a system's; empty: it does."""
        user, system = ({"role": role, "content": "Hello"} for role in ("user", "system"))
        for text in self._chat_tokens:
            why, also = (_why_not(text, messages, self.special_tokens) for messages in ([user], [system, user]))
            if why and also:
                return f"The chat template writes no message of a user ({why}). Copy the checkpoint again."
        return ""

    @property
    def template_of_tools(self) -> str:
        """The template of a conversation with tools; empty without one."""
        return self.tool_template or self.template or ""

    @cached_property
    def template_names(self) -> frozenset[str]:
        """What the chat template reads, such as ``messages``; ``tools``, where it can write of them."""
        return frozenset().union(*(template_names(text) for text in self._chat_tokens))

    def render(self, messages: Sequence[Mapping[str, Any]], beside: Mapping[str, Any] | None = None) -> str:
        """The conversation as the chat template writes it, up to where the assistant speaks. beside: as in
        ``encode_chat``.

        Raises UserError without a chat template, and for messages that it refuses.
        """
        template = self._template_for(beside)
        if not messages:
            raise UserError("messages=[] is an empty conversation. Give it at least one message.")
        for number, message in enumerate(messages):
            if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
                raise UserError(f"messages[{number}]={dict(message)!r} must give a role and a content, both strings.")
        try:
            return render_messages(self._compiled[template], messages, self.special_tokens, beside)
        except Exception as error:  # a template may fail in any way that Python can
            why = str(error) or type(error).__name__
            raise UserError(f"the chat template refuses these messages: {why}. Change them to fit it.") from error

    @cached_property
    def _compiled(self) -> Mapping[str, Template]:
        return {text: compile_template(text) for text in self._chat_tokens}

    @cached_property
    def thought_marks(self) -> ThoughtMarks | None:
        """What is around a thought, where the chat template knows of thoughts."""
        return thought_marks(self.template)

    @cached_property
    def hidden_marks(self) -> frozenset[int]:
        """The special ids that write these marks, which decoded text leaves out."""
        marks = self.thought_marks
        texts = () if marks is None else (marks.begin, marks.end)
        ids = {token: text for token, text in ((number, self.token(number)) for number in self.special_ids) if text}
        return frozenset(token for token, text in ids.items() if any(mark.startswith(text) for mark in texts))

    def decode(self, ids: Iterable[int], skip_special: bool = True, visible_ids: frozenset[int] = frozenset()) -> str:
        """Text of ids, without ``special_ids`` unless ``skip_special`` is False or they are among ``visible_ids``.
        Unknown ids give no text."""
        visible = [number for number in ids if not (skip_special and number in self.special_ids - visible_ids)]
        return str(self.backend.decode(visible, skip_special_tokens=False))

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """What each id adds to ``decode(ids)``: joined, they are that text's UTF-8. Special ids add nothing."""
        parts = iter(pieces_of(self.backend, [number for number in ids if number not in self.special_ids]))
        return [b"" if number in self.special_ids else next(parts) for number in ids]

    def token_bytes(self, number: int) -> bytes:
        """The bytes of one id by itself. Special ids have none."""
        return b"" if number in self.special_ids else alone(self.backend, number)


def _check_template(template: str, file: Path) -> None:
    try:
        parse_template(template)
    except (TemplateError, RecursionError) as error:
        raise broken(f"{file} holds a chat_template that cannot be parsed ({error})") from error


def _why_not(template: str, messages: Sequence[Mapping[str, Any]], special: Mapping[str, str]) -> str:
    """Why a template does not write messages; empty: it does."""
    try:
        render_messages(compile_template(template), messages, special)
    except Exception as error:  # a template may fail in any way that Python can
        return f"{type(error).__name__}: {first_line(error)}"
    return ""
