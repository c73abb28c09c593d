"""Makes requests from what a user writes. Needs a model's configuration and tokenizer, but no weights.

A prompt is text: what spells a special token in it (``<|eot_id|>``) stays text, in plain prompts, in messages and in
infilling alike. Only the chat template makes special tokens. To use others, give token ids.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from dllm.common.errors import Refusal, TooLong, UserError, nearest, verbatim
from dllm.contract.canvas import Request
from dllm.models.text.chat_template import RESERVED_FIELDS
from dllm.models.text.ids import Ids
from dllm.models.text.tokenizer_files import SPECIAL_TOKEN_KEYS

if TYPE_CHECKING:
    from dllm.models.config import ModelConfig
    from dllm.models.text.tokenizer import Tokenizer

Message = dict[str, Any]


@dataclass(frozen=True)
class PrefilledPrompt:
    """A prompt whose answer has a given beginning, which is not decoded (lm-eval's ``gen_prefix``)."""

    prompt: str | list[Message]  # a text, or the messages of a conversation
    begin: str  # how the answer begins


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation with what else the chat template may read."""

    messages: list[Message]  # of the conversation; calls hold their arguments as objects, as templates expect
    # what else the template may read: ``tools`` (OpenAI's objects), and its own variables, such as ``enable_thinking``
    beside: Mapping[str, Any] = field(default_factory=dict)
    begin: str = ""  # how the answer begins, which is not decoded


AskedPrompt = str | list[Message] | list[int] | PrefilledPrompt | ChatPrompt
Prompt = AskedPrompt | Request


@dataclass(frozen=True)
class Prompts:
    """Makes requests."""

    config: ModelConfig  # the checkpoint's description
    tokenizer: Tokenizer | None  # None: prompts are token ids
    ids: Ids  # of the mask and the ends of a text
    # the model's, for messages. Raises UserError for prompts that are empty, too long, or hold unknown tokens
    name: str
    gen_length: int  # masks after a prompt
    chat: bool | None = None  # apply the chat template to text (None: if there is one)
    # what else the chat template reads of every conversation, such as ``enable_thinking``
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    known: dict[int, str] = field(default_factory=dict, repr=False, compare=False)  # text of each token seen so far

    def __post_init__(self) -> None:
        """Refuse, with UserError, switches that the model's chat template does not read."""
        names = frozenset() if self.tokenizer is None else self.tokenizer.template_names
        for name in self.chat_template_kwargs:
            if name in RESERVED_FIELDS or name not in names:
                others = sorted(names.difference(RESERVED_FIELDS, SPECIAL_TOKEN_KEYS))
                why = f"which reads {', '.join(others) or 'nothing but the messages'}" if names else "which has none"
                raise Refusal(
                    f"chat_template_kwargs.{name} is not a switch of the chat template of {self.name}, {why}. Drop "
                    f"it: {{model.chat_template_kwargs=null}}.{nearest(name, others)}"
                )

    def request(self, prompt: Prompt, seed: int = 0) -> Request:
        """The canvas row of a prompt: text, chat messages, token ids, or a ready-made Request (infilling)."""
        if isinstance(prompt, Request):
            request = replace(prompt, seed=seed)
        else:
            request = Request.answer(self.encode(prompt), self.gen_length, self.ids.placeholder, seed)
            if isinstance(prompt, PrefilledPrompt):
                request = replace(request, answer_prefix=prompt.begin)
        if self.config.attention.next_token:
            _refuse_gaps(request, self.name)
        limit, length = self.config.max_length, len(request.tokens)
        if length > limit:
            raise Refusal(
                f"the prompt takes {sum(not masked for masked in request.masked)} tokens and its answer "
                f"{sum(request.masked)}, together more than the model's limit of {limit}. Shorten the prompt or lower "
                "{gen_length:name}."
            )
        return request

    def requests(
        self, prompts: Sequence[Prompt], constraints: Sequence[Hashable | None], seeds: Iterable[int], copies: int
    ) -> list[Request]:
        """``copies`` requests of each prompt in turn, under its constraint, with these seeds."""
        if len(constraints) != len(prompts):
            raise UserError(
                f"there are {len(constraints)} constraints for {len(prompts)} prompts. Give one each, None where free."
            )
        pairs = [pair for pair in zip(prompts, constraints, strict=True) for _ in range(copies)]
        return [
            replace(self.request(prompt, seed), constraint=constraint)
            for seed, (prompt, constraint) in zip(seeds, pairs, strict=False)
        ]

    def encode(self, prompt: AskedPrompt) -> list[int]:
        """Token ids of a prompt, which must hold at least one. Raises TooLong, before it is tokenized, for a text whose
        bytes alone say that it is longer than the model's limit."""
        if isinstance(prompt, str) and not prompt.strip():
            raise UserError("the prompt is empty: give it some text.")
        tokens = self._encode(prompt)
        if not tokens:
            raise UserError("the prompt is empty: give it at least one token.")
        outside = [token for token in tokens if not 0 <= token < self.config.vocab]
        if outside:
            raise UserError(f"token id {outside[0]} is not in the model's vocabulary of {self.config.vocab}.")
        return tokens

    def _encode(self, prompt: AskedPrompt) -> list[int]:
        """A prefilled prompt is encoded as one text, since a token may span both of its parts."""
        if isinstance(prompt, ChatPrompt):
            return self._tokenizer().encode_chat(
                prompt.messages, prompt.begin, {**self.chat_template_kwargs, **prompt.beside}, self.config.max_length
            )
        begin = prompt.begin if isinstance(prompt, PrefilledPrompt) else ""
        asked = prompt.prompt if isinstance(prompt, PrefilledPrompt) else prompt
        if isinstance(asked, list):
            return self._ids(cast(list[int], asked)) if is_ids(asked) else self._chat(cast(list[Message], asked), begin)
        tokenizer = self._tokenizer()
        if tokenizer.has_chat_template if self.chat is None else self.chat:
            return self._chat([{"role": "user", "content": asked}], begin)
        return [*tokenizer.opening, *tokenizer.encode(asked + begin, most=self.config.max_length, begins=True)]

    def _ids(self, tokens: list[int]) -> list[int]:
        if self.ids.mask in tokens:
            raise Refusal(
                f"token id {self.ids.mask} is the mask, which a prompt cannot hold. Leave it out, or ask for holes by "
                "{infill=[TEXT, NUMBER, ...]}."
            )
        return tokens

    def _chat(self, messages: list[Message], begin: str) -> list[int]:
        return self._tokenizer().encode_chat(messages, begin, self.chat_template_kwargs, self.config.max_length)

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UserError(
                f"model {self.name} has no tokenizer: give prompts as lists of token ids, on the command line by "
                'prompts=FILE with lines such as {"tokens": [1, 2]}.'
            )
        return self.tokenizer

    def infill(self, parts: Sequence[str | int | None], prompt: AskedPrompt | None = None) -> Request:
        """A request with masks anywhere: strings are text, a number for that many masks, in order, None for a hole
        whose size is to be found. prompt: what they answer, which goes into the chat template as any prompt does (None:
        the parts are the whole canvas).

        Raises UserError for other parts, for none or too many masks, and as ``encode`` does.
        """
        refuse_other_parts(parts)
        limit = self.config.max_length
        if (holes := sum(piece for piece in parts if isinstance(piece, int))) > limit:
            raise Refusal(f"{{infill:name}} has {holes} masks, and the model's limit is {limit} tokens.")
        tokens: list[int] = []
        masked: list[bool] = []
        gap = None
        for piece in parts:
            if piece is None:
                gap, piece = len(tokens), 1  # noqa: PLW2901  one mask stands for it
            ids = (
                [self.ids.placeholder] * piece
                if isinstance(piece, int)
                else self._tokenizer().encode(piece, most=limit, begins=not tokens)
            )
            if len(tokens) + len(ids) > limit:
                raise TooLong(
                    f"{{infill:name}} takes more tokens than the model's limit of {limit}. Shorten its texts."
                )
            tokens += ids
            masked += [isinstance(piece, int)] * len(ids)
        if not any(masked):
            raise Refusal("{infill:quoted} has nothing to fill in: put numbers of masks between texts.", [list(parts)])
        if prompt is None:
            return Request(tokens, masked, gap=gap)
        if isinstance(prompt, Request):
            raise UserError("prompt= of an infilling is text, messages or token ids, and not a request made already.")
        asked = self.encode(prompt)
        gap = None if gap is None else gap + len(asked)
        return Request([*asked, *tokens], [False] * len(asked) + masked, start=len(asked), infill=True, gap=gap)

    def ids_of(self, text: str) -> list[int]:
        """Plain token ids of a text, without special tokens."""
        return self._tokenizer().encode(text)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of token ids, empty where the model has no tokenizer."""
        return "" if self.tokenizer is None else self.tokenizer.decode(list(tokens))

    def marked_text(self, tokens: Sequence[int]) -> str:
        """The same with the marks around a thought, which may be special tokens."""
        tokenizer = self.tokenizer
        return "" if tokenizer is None else tokenizer.decode(list(tokens), visible_ids=tokenizer.hidden_marks)

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        """What each token adds to ``text(tokens)``: joined, they are that text's UTF-8."""
        return [b""] * len(tokens) if self.tokenizer is None else self.tokenizer.pieces(tokens)

    def token_bytes(self, token: int) -> bytes:
        """What a token writes by itself, where it is a part of a character, too; special tokens write nothing."""
        return b"" if self.tokenizer is None else self.tokenizer.token_bytes(token)

    def words(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token by itself: special tokens by name, ``<id>`` if the model has no tokenizer."""
        for token in set(tokens).difference(self.known):
            name = None if self.tokenizer is None else self.tokenizer.token(token)
            self.known[token] = self.text([token]) or name or f"<{token}>"
        return [self.known[token] for token in tokens]


def _refuse_gaps(request: Request, name: str) -> None:
    """Raise UserError for masks that are not a text's end, and for those that no token is before."""
    first = request.first_mask
    if not first or not all(request.masked[first:]):
        where = "text after a gap" if first else "a text without a beginning"
        raise UserError(
            f"{where} means nothing to {name}, which predicts the next token from those before it. Give a prompt "
            "alone, or take a model of masks."
        )


def refuse_other_parts(parts: object) -> None:
    """Raise UserError unless the parts of an infilling are a list of texts and numbers of masks."""
    rule = 'a list of texts and numbers of masks, such as ["The cat ", 3, " on the mat"]'
    if isinstance(parts, str | bytes) or not isinstance(parts, Sequence) or not parts:
        raise Refusal(f"{{infill:quoted}} must be {rule}.", [parts])
    for piece in parts:
        number = isinstance(piece, int) and type(piece) is not bool and piece > 0
        if not (piece is None or isinstance(piece, str) or number):
            raise Refusal(f"{{infill:name}} holds {verbatim(repr(piece))}, and must be {rule}.")


def is_ids(prompt: list[Any]) -> bool:
    """Whether a list is token ids rather than messages; an empty list counts as ids."""
    return all(isinstance(token, int) for token in prompt)


def as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """Several prompts as they are, one prompt as a list of one. Raises UserError for what is not a prompt."""
    single = isinstance(prompts, str | PrefilledPrompt | ChatPrompt | Request)
    if not single and not isinstance(prompts, Sequence):
        raise Refusal("{prompts:quoted} must be text, messages, token ids or a Request, or a list of such.", [prompts])
    if single or (prompts and (is_ids(cast(list[Any], prompts)) or isinstance(cast(list[Any], prompts)[0], dict))):
        return [cast(Prompt, prompts)]
    return cast(Sequence[Prompt], prompts)
