"""The files of a published tokenizer: settings, vocabulary, added and special tokens, templates, ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from dllm.common.coerce import is_text
from dllm.common.errors import UserError
from dllm.models.keys import MAX_SIZE, REQUIRED, KeyRule, KeyRules, integer, read_keys, token_ids
from dllm.models.weights.files import broken, read_json, read_text, refuse_pointer

# Qwen2's pre-tokenisation, which the published DreamTokenizer (remote code, never run) repeats.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _is_token(value: Any) -> bool:
    """A special token: a string, or an object with its content."""
    return is_text(value) or (isinstance(value, dict) and is_text(value.get("content")))


def _are_tokens(value: Any) -> bool:
    """A list of special tokens, or an object from names to special tokens."""
    return isinstance(value, list | dict) and all(map(_is_token, value.values() if isinstance(value, dict) else value))


def _numbered(value: Any) -> bool:
    """Added tokens by id: ``{"151643": {"content": "<|endoftext|>", "special": true}}``."""
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return isinstance(value, dict) and all(
        number.isascii()
        and number.isdigit()
        and isinstance(entry, dict)
        and is_text(entry.get("content"))
        and all(isinstance(entry.get(name, False), bool) for name in flags)
        for number, entry in value.items()
    )


def _are_templates(value: Any) -> bool:
    """One template, or several by name: an object, or a list of objects."""
    if isinstance(value, dict):
        return all(map(is_text, value.values()))
    return is_text(value) or (
        isinstance(value, list)
        and all(
            isinstance(entry, dict) and is_text(entry.get("name")) and is_text(entry.get("template")) for entry in value
        )
    )


_TOKEN = KeyRule("a string or an object with its content", _is_token)
SPECIAL_TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TOKENIZER: KeyRules = {
    **dict.fromkeys(SPECIAL_TOKEN_KEYS, _TOKEN),
    "additional_special_tokens": KeyRule("a list of strings or of objects with their content", _are_tokens, []),
    "extra_special_tokens": KeyRule("a list or an object of strings or of objects with their content", _are_tokens, []),
    "added_tokens_decoder": KeyRule(
        "an object from ids to objects with a content and flags that are true or false", _numbered, {}
    ),
    "chat_template": KeyRule(
        "a string, an object of strings or a list of objects with a name and a template", _are_templates
    ),
}
GENERATION: KeyRules = {"eos_token_id": token_ids(MAX_SIZE)}


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """special_tokens_map.json, overridden by tokenizer_config.json. Both may be absent."""
    merged = read_keys(TOKENIZER, {}, "")
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            content = read_json(folder / name)
            # Special tokens of a model's own, such as ``image_token``; ``add_bos_token`` is none.
            own = [key for key, value in content.items() if key.endswith("_token") and _is_token(value)]
            values = read_keys({**TOKENIZER, **dict.fromkeys(own, _TOKEN)}, content, name)
            merged |= {key: value for key, value in values.items() if content.get(key) is not None}
    return merged


def backend_of(folder: Path, settings: Mapping[str, Any]) -> Backend:
    """tokenizer.json, or vocab.json and merges.txt, with added tokens. Raises UserError for missing or broken files."""
    whole, vocabulary, merges = folder / "tokenizer.json", folder / "vocab.json", folder / "merges.txt"
    if not whole.is_file() and not (vocabulary.is_file() and merges.is_file()):
        raise UserError(
            f"{folder} holds neither tokenizer.json nor both vocab.json and merges.txt, so text cannot be turned "
            "into ids. Copy the tokenizer files of the checkpoint, or pass prompts as token ids."
        )
    for file in (whole,) if whole.is_file() else (vocabulary, merges):
        refuse_pointer(file)
    try:
        if whole.is_file():
            backend = Backend.from_file(str(whole))
        else:  # Qwen2's
            backend = byte_level(models.BPE.from_file(str(vocabulary), str(merges)), QWEN2_SPLIT, True)
    except Exception as error:
        raise broken(f"the tokenizer in {folder} cannot be read ({error})") from error
    backend.no_truncation()  # some published files still hold the limits of their training
    backend.no_padding()
    _add_tokens(backend, _added(folder, settings), folder)
    return backend


def byte_level(model: models.BPE, split: str, composes: bool) -> Backend:
    """A tokenizer of byte-level BPE. split: the expression by which texts are cut first. composes: into NFC before."""
    backend = Backend(model)
    if composes:
        backend.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(Regex(split), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _added(folder: Path, settings: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Added tokens by id, from tokenizer_config.json and added_tokens.json."""
    tokens: dict[int, AddedToken] = {}
    if (folder / "added_tokens.json").is_file():
        content = read_json(folder / "added_tokens.json")
        numbers = read_keys(dict.fromkeys(content, integer(0, MAX_SIZE, REQUIRED)), content, "added_tokens.json")
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
    custom = [key for key in settings if key.endswith("_token") and key not in SPECIAL_TOKEN_KEYS]
    entries = {key: settings.get(key) for key in (*SPECIAL_TOKEN_KEYS, *custom)}
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
    ids = read_keys(GENERATION, read_json(file), file.name)["eos_token_id"] if file.is_file() else None
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
