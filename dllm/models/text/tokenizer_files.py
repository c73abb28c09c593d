"""The files of a published tokenizer: settings, vocabulary, added and special tokens, templates, ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from dllm.common.errors import UserError
from dllm.models.keys import read_keys
from dllm.models.text import token_tables
from dllm.models.weights.files import broken, read_json, read_text, refuse_pointer

# Qwen2's pre-tokenisation, which the published DreamTokenizer (remote code, never run) repeats.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """special_tokens_map.json, overridden by tokenizer_config.json. Both may be absent."""
    merged = read_keys(token_tables.TOKENIZER, {}, "")
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            content = read_json(folder / name)
            values = read_keys({**token_tables.TOKENIZER, **token_tables.named_tokens(content)}, content, name)
            merged |= {key: value for key, value in values.items() if content.get(key) is not None}
    return merged


def backend_of(folder: Path, settings: Mapping[str, Any]) -> Backend:
    """tokenizer.json, or vocab.json and merges.txt, with the added tokens. Raises UserError for missing or broken
    files."""
    whole, vocabulary, merges = folder / "tokenizer.json", folder / "vocab.json", folder / "merges.txt"
    if not whole.is_file() and not (vocabulary.is_file() and merges.is_file()):
        raise UserError(
            f"{folder} holds neither tokenizer.json nor both vocab.json and merges.txt, so text cannot be turned "
            "into ids. Copy the tokenizer files of the checkpoint, or pass prompts as token ids."
        )
    for file in (whole,) if whole.is_file() else (vocabulary, merges):
        refuse_pointer(file)
    try:
        backend = Backend.from_file(str(whole)) if whole.is_file() else _byte_level(vocabulary, merges)
    except Exception as error:
        raise broken(f"the tokenizer in {folder} cannot be read ({error})") from error
    backend.no_truncation()  # some published files still hold the limits of their training
    backend.no_padding()
    _add_tokens(backend, _added(folder, settings), folder)
    return backend


def _byte_level(vocabulary: Path, merges: Path) -> Backend:
    """Qwen2's byte-level BPE from its two files."""
    backend = Backend(models.BPE.from_file(str(vocabulary), str(merges)))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _added(folder: Path, settings: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Added tokens by id, from tokenizer_config.json and added_tokens.json."""
    tokens: dict[int, AddedToken] = {}
    if (folder / "added_tokens.json").is_file():
        content = read_json(folder / "added_tokens.json")
        numbers = read_keys(token_tables.added_tokens(content), content, "added_tokens.json")
        tokens = {number: AddedToken(text, normalized=False) for text, number in numbers.items()}
    for number, entry in settings["added_tokens_decoder"].items():
        flags = {key: bool(entry.get(key)) for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        tokens[int(number)] = AddedToken(entry["content"], **flags)
    return tokens


def _add_tokens(backend: Backend, tokens: Mapping[int, AddedToken], folder: Path) -> None:
    """Add the tokens that the backend lacks, at the ids of the files. Raises UserError where an id is taken."""
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    for number, token in sorted(tokens.items()):
        if token.content not in present:
            backend.add_tokens([token])
        if backend.token_to_id(token.content) != number:
            raise broken(
                f"{folder}: added token {token.content!r} should have id {number} but gets "
                f"{backend.token_to_id(token.content)}: the tokenizer files contradict each other"
            )


def special_tokens_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that the settings name, by their keys: the usual ones, those of a model's own, and those of an
    object under ``extra_special_tokens``, as transformers 5 hands them to templates."""
    extra = settings["extra_special_tokens"]
    custom = [key for key in settings if key.endswith("_token") and key not in token_tables.SPECIAL_TOKEN_KEYS]
    entries = {key: settings.get(key) for key in (*token_tables.SPECIAL_TOKEN_KEYS, *custom)}
    entries = {
        **(extra if isinstance(extra, dict) else {}),
        **{key: entry for key, entry in entries.items() if entry is not None},
    }
    return {key: text for key, value in entries.items() if (text := _text(value)) is not None}


def special_ids_of(
    backend: Backend, vocabulary: Mapping[str, int], special_tokens: Mapping[str, str], settings: Mapping[str, Any]
) -> frozenset[int]:
    """The ids that decoded text leaves out: marked as special, or named by the settings. vocabulary: ids by text."""
    flagged = {number for number, token in backend.get_added_tokens_decoder().items() if token.special}
    lists = (settings["additional_special_tokens"], settings["extra_special_tokens"])
    more = [entry for entries in lists for entry in (entries.values() if isinstance(entries, dict) else entries)]
    texts = {*special_tokens.values(), *(text for entry in more if (text := _text(entry)) is not None)}
    return frozenset(flagged | {vocabulary[text] for text in texts if text in vocabulary})


def _text(entry: Any) -> str | None:
    """The content of a special token, given as a string or an object."""
    content = entry.get("content") if isinstance(entry, Mapping) else entry
    return None if content is None else str(content)


def generation_ends(folder: Path) -> list[int]:
    """The ids that end a text by generation_config.json; none where the folder has no such file."""
    file = folder / "generation_config.json"
    ids = read_keys(token_tables.GENERATION, read_json(file), file.name)["eos_token_id"] if file.is_file() else None
    return [] if ids is None else ids if isinstance(ids, list) else [ids]


def templates_of(folder: Path, settings: Mapping[str, Any]) -> tuple[Path, Mapping[str, str]]:
    """The templates by name and the file that they are in: those of chat_template.jinja and of the folder
    additional_chat_templates, else of tokenizer_config.json."""
    single, more = folder / "chat_template.jinja", folder / "additional_chat_templates"
    templates = {file.name.removesuffix(".jinja"): read_text(file) for file in sorted(more.glob("*.jinja"))}
    if single.is_file():
        return single, {"default": read_text(single), **templates}
    if templates:
        return more, templates
    return folder / "tokenizer_config.json", templates_by_name(settings["chat_template"])


def templates_by_name(templates: Any) -> Mapping[str, Any]:
    """Templates by name, whether a file has one, or several as an object or a list."""
    if isinstance(templates, list):
        return {entry["name"]: entry["template"] for entry in templates}
    return templates if isinstance(templates, Mapping) else {} if templates is None else {"default": templates}
