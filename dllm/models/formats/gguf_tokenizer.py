"""The tokenizer and chat template that a GGUF file holds.

Tokens, merges and a word for how text is cut before it is merged (``tokenizer.ggml.pre``), whose expressions are here
as the published tokenizers have them; or, where a converter added it, the whole ``tokenizer.json``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from dllm.common.errors import UserError
from dllm.models.formats.gguf_file import GgufFile, is_gguf, read_gguf
from dllm.models.keys import quote
from dllm.models.text.pieces import SPACE
from dllm.models.text.tokenizer import Tokenizer
from dllm.models.text.tokenizer_files import QWEN2_SPLIT, byte_level
from dllm.models.weights.files import broken

_LING_SPLIT = (  # Ling's, whose tokenizer LLaDA-MoE and LLaDA2 have
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_GPT4_SPLIT = QWEN2_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")  # Llama 3's, too
_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPLITS = {
    "bailingmoe": _LING_SPLIT,
    "bailingmoe2": _LING_SPLIT,
    "llada-moe": _LING_SPLIT,
    "qwen2": QWEN2_SPLIT,
    "llama-bpe": _GPT4_SPLIT,
    "llama3": _GPT4_SPLIT,
    "gpt-2": _GPT2_SPLIT,
}
_COMPOSED = ("qwen2",)  # texts are brought into NFC first
_MERGES_LAST = ("llama-bpe", "llama3")  # a whole word that is a token is one, whatever merges make of it
_GEMMA, _GEMMA_TURN = "gemma4", "<turn|>"  # the kind of its vocabulary, and what ends its turns, as no key says
# Tokens that its files may have as plain ones: control whatever they say, but for those that answers show.
_MARKS = re.compile(r"<\|.*>|<.*\|>|</?s>")
_VISIBLE = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'}
_CONTROL, _USER, _UNUSED = 3, 4, 5  # kinds of tokens: special, added by a user, no token at all
_SPECIAL = {"bos": "bos", "eos": "eos", "unknown": "unk", "seperator": "sep", "padding": "pad", "cls": "cls",
            "mask": "mask"}  # fmt: skip  # sic: GGUF's word, and ours


def tokenizer_at(path: Path) -> Tokenizer | None:
    """The tokenizer of a checkpoint's folder, or of a GGUF file: its own, else that of files beside it. None: there is
    none. Raises UserError for one that cannot be read."""
    if not is_gguf(path):
        return Tokenizer.from_folder(path) if Tokenizer.present(path) else None
    file = read_gguf(path)
    way_out = f"Put the model's tokenizer.json and tokenizer_config.json into {path.parent}"
    try:
        backend = _backend(file.metadata, path)
    except UserError as error:
        if Tokenizer.present(path.parent):
            return Tokenizer.from_folder(path.parent)
        raise UserError(f"{str(error).rstrip('.')}. {way_out}.") from error
    if backend is not None:
        return _assembled(backend, file, path)
    return Tokenizer.from_folder(path.parent) if Tokenizer.present(path.parent) else None


def _assembled(backend: Backend, file: GgufFile, path: Path) -> Tokenizer:
    ids = {ours: file.metadata.get(f"tokenizer.ggml.{theirs}_token_id") for theirs, ours in _SPECIAL.items()}
    special = {
        f"{name}_token": text
        for name, number in ids.items()
        if isinstance(number, int) and (text := backend.id_to_token(number)) is not None
    }
    ends = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    if file.metadata.get("tokenizer.ggml.model") == _GEMMA:
        ends.append(backend.token_to_id(_GEMMA_TURN))
    end_ids = [end for end in ends if isinstance(end, int) and backend.id_to_token(end) is not None]
    tokenizer = Tokenizer.assembled(backend, special, _templates(file.metadata), end_ids, path)
    begins = file.metadata.get("tokenizer.ggml.add_bos_token") is True and "bos_token" in special
    return replace(tokenizer, opening=(int(file.metadata["tokenizer.ggml.bos_token_id"]),)) if begins else tokenizer


def _templates(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The chat templates by name."""
    key = "tokenizer.chat_template"
    templates = {name.removeprefix(f"{key}."): text for name, text in metadata.items() if name.startswith(f"{key}.")}
    return {**templates, "default": metadata[key]} if key in metadata else templates


def _backend(metadata: Mapping[str, Any], path: Path) -> Backend | None:
    """None: the file has no vocabulary."""
    whole, kind = metadata.get("tokenizer.huggingface.json"), metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(whole, str) and whole:
        try:
            return Backend.from_str(whole)
        except Exception as error:
            raise broken(f"{path}: its tokenizer.huggingface.json cannot be read ({error})") from error
    if kind in (None, "none", "no_vocab") or not tokens:
        return None
    if kind not in ("gpt2", _GEMMA):
        support = "byte-level BPE (gpt2) and Gemma 4's are read"
        raise UserError(f"{path} has a vocabulary of the kind {quote(kind)}, and only {support}.")
    if kind == "gpt2" and metadata.get("tokenizer.ggml.pre") not in SPLITS:
        cut = metadata.get("tokenizer.ggml.pre")
        raise UserError(f"{path} has tokenizer.ggml.pre={quote(cut)}, and known ones are {', '.join(SPLITS)}.")
    kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    merges = [tuple(merge.split(" ")) for merge in metadata.get("tokenizer.ggml.merges") or ()]
    if len(kinds) != len(tokens) or not merges or any(len(merge) != 2 for merge in merges):
        raise broken(f"{path}: tokens, token types and merges of its vocabulary do not fit each other")
    by_text = dict(zip(tokens, kinds, strict=True))
    if kind == _GEMMA:
        return _gemma(by_text, tokens, merges, path)
    return _byte_level(by_text, tokens, merges, str(metadata["tokenizer.ggml.pre"]), path)


def _bpe(path: Path, vocabulary: dict[str, int], merges: list[Any], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab=vocabulary, merges=merges, **options)
    except Exception as error:
        raise broken(f"{path}: its vocabulary cannot be read ({error})") from error


def _gemma(kinds: Mapping[str, int], tokens: list[str], merges: list[Any], path: Path) -> Backend:
    """Gemma 4's: a blank is a sign of its own, and what the vocabulary lacks is spelt in bytes. Its tokenizer.json cuts
    texts at blanks, after all of them are replaced: not at all."""
    vocabulary = {text: number for number, text in enumerate(tokens)}
    backend = Backend(_bpe(path, vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", SPACE)
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    user_tokens = {text for text, kind in kinds.items() if kind == _USER} | _VISIBLE.intersection(kinds)
    control = {text for text, kind in kinds.items() if kind == _CONTROL or _MARKS.fullmatch(text)} - user_tokens
    backend.add_tokens(
        [
            AddedToken(text, special=text in control, normalized=False)
            for text in tokens
            if text in control or text in user_tokens
        ]
    )
    return backend


def _byte_level(kinds: Mapping[str, int], tokens: list[str], merges: list[Any], cut: str, path: Path) -> Backend:
    vocabulary = {text: number for number, text in enumerate(tokens) if kinds[text] != _UNUSED}
    model = _bpe(path, vocabulary, merges, ignore_merges=cut in _MERGES_LAST)
    backend = byte_level(model, SPLITS[cut], cut in _COMPOSED)
    backend.add_tokens(
        [
            AddedToken(text, special=kinds[text] == _CONTROL, normalized=False)
            for text in vocabulary
            if kinds[text] in (_CONTROL, _USER)
        ]
    )
    return backend
