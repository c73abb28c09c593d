"""The tokenizer of the mini models: whole words of the suite's vocabulary over a byte alphabet.

Both models share one vocabulary layout, so that mini-dream can start from mini-llada's weights; only the spelling of
the special tokens and the chat template differ.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dllm.tasks.parallelbench import vocabulary as words
from experiments.mini.tokenizer import BOS as BOS
from experiments.mini.tokenizer import EOS as EOS
from experiments.mini.tokenizer import MASK as MASK
from experiments.mini.tokenizer import SPECIAL, TEMPLATES

PIECES = Regex(r""" ?\["|", "|"\]| ?"| ?[A-Za-z]+| ?[0-9]|\n+|,|\.|:""")


def entries() -> list[str]:
    """Whole words and pieces that are one token each, as plain text."""
    nouns = [*words.NOUNS, *(noun + "s" for noun in words.NOUNS)]
    verbs = [*words.VERBS, *(verb + "s" for verb in words.VERBS)]
    determiners = dict.fromkeys([*words.SINGULAR, *words.PLURAL])
    spaced = [*nouns, *verbs, *words.PLACES, *words.ADJECTIVES, *words.PREPOSITIONS, *determiners, *words.WORDING]
    starts = [word.capitalize() for word in determiners] + [w for w in words.WORDING if w[0].isupper()]
    plain = ['["', '", "', '"]', ' ["', ' "', "\n\n", "user", "assistant", "system", *words.FIRST_NAMES, *starts]
    plain += [f" {digit}" for digit in range(10)] + [f" {word}" for word in [*spaced, *words.FIRST_NAMES]]
    return list(dict.fromkeys(plain))


def build(model: str) -> Tokenizer:
    """The tokenizer of ``mini-llada`` or ``mini-dream``; any text round-trips through its byte alphabet."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocab = {token: index for index, token in enumerate(SPECIAL[model])}
    as_bytes = [level.pre_tokenize_str(entry)[0][0] for entry in entries()]
    for token in sorted(pre_tokenizers.ByteLevel.alphabet()) + as_bytes:
        vocab.setdefault(token, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(PIECES, "isolated"), level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL[model]])
    return tokenizer


def wrap(model: str) -> PreTrainedTokenizerFast:
    """The same with its chat template and special roles, as transformers loads it."""
    eos, bos, mask, *others = SPECIAL[model]
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=build(model), bos_token=bos, eos_token=eos, pad_token=eos, mask_token=mask,
        additional_special_tokens=others, padding_side="left", clean_up_tokenization_spaces=False,
        model_max_length=256,
    )  # fmt: skip
    wrapped.chat_template = TEMPLATES[model]
    return wrapped


def save(model: str, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    wrap(model).save_pretrained(str(folder))
