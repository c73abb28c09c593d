"""A checkpoint of seconds: the tiny golden model with a tokenizer of one word per id, and a chat template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

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


def _checkpoint(folder: Path, tokenizer: Tokenizer, source: Path) -> Path:
    shutil.copytree(source, folder)
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "eos_token": SPECIAL[EOS], "mask_token": SPECIAL[MASK]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
