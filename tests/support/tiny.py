"""A checkpoint of seconds: the tiny golden model with a tokenizer of one word per id, and a chat template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

MODELS = Path(__file__).parents[1] / "data" / "models"
SOURCE = MODELS / "tiny-llada"
MASK, EOS, USER, ASSISTANT = 60, 61, 62, 63
SPECIAL = {MASK: "<|mdm_mask|>", EOS: "<|endoftext|>", USER: "<user>", ASSISTANT: "<assistant>"}
SIGNS = 'abcdefghijklmnopqrstuvwxyz0123456789{}[]":,.-_Ġ\\ABCDEFTNUV+/'  # Ġ: a space
# Its switch changes nothing; that the template reads it lets presets of families that have one be tried.
TEMPLATE = (
    "{% set quiet = enable_thinking is defined %}"
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }} {% endfor %}<assistant>"
)


def make_tiny(folder: Path, source: Path = SOURCE) -> Path:
    """``folder`` as a complete checkpoint with the weights of ``source``. Ids 0 to 59 are the words w0 to w59; w0 is
    also what is unknown."""
    words = {f"w{number}": number for number in range(60)} | {text: number for number, text in SPECIAL.items()}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    return _checkpoint(folder, tokenizer, source)


def make_written(folder: Path, signs: Sequence[str] = SIGNS, source: Path = SOURCE) -> Path:
    """The same with a byte-level tokenizer, which constraints need: ids 0 to 59 are one printable byte each, or write
    ``signs``."""
    words = {sign: number for number, sign in enumerate(signs)} | {text: number for number, text in SPECIAL.items()}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _checkpoint(folder, tokenizer, source)


# Of dg_dev, as Gemma's files have it: ``<turn|>`` ends an answer, and so does an id that is no special token.
GEMMA_ENDS, BEGIN_TURN = (1, 47, 12), 60
GEMMA_SIGNS = "abcdefghijklmnopqrstuvwxyz0123456789\u2581\n{}[]\":,.-_?!'()"
GEMMA_TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for tool in tools or [] -%}{{- '<|turn>system\\n' + tool['function']['name'] + '<turn|>\\n' -}}{%- endfor -%}"
    "{%- for m in messages -%}{{- '<|turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\\n' -}}"
    "{{- m['content'] | trim -}}{{- '<turn|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|turn>model\\n' -}}{%- endif -%}"
)


def make_gemma(folder: Path) -> Path:
    """``folder`` as a checkpoint of dg_dev with a tokenizer, a chat template and ends of a text of Gemma's form."""
    shutil.copytree(MODELS / "dg_dev", folder)
    special = dict(enumerate(("<pad>", "<eos>", "<bos>", "<unk>"))) | {
        GEMMA_ENDS[1]: "<turn|>",
        BEGIN_TURN: "<|turn>",
        62: "<|channel>",
        63: "<channel|>",
    }
    signs = iter([*GEMMA_SIGNS, *(f"<0x{byte:02X}>" for byte in range(0xC2, 0xE0))])
    words = {special.get(number) or next(signs): number for number in range(64)}
    tokenizer = Tokenizer(models.BPE(words, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special.values()])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(GEMMA_TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": GEMMA_ENDS, "pad_token_id": 0}))
    return folder


def _checkpoint(folder: Path, tokenizer: Tokenizer, source: Path) -> Path:
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.xz"))  # the plain weights are beside
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "eos_token": SPECIAL[EOS], "mask_token": SPECIAL[MASK]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
