"""The tokenizer of the mini models: known words are one token each, others are spelt in pieces, bytes at the end.

Models that are asked in further wordings know the words of these besides. Else they differ in the spelling of the
special tokens and the chat template alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from dllm.tasks.mini import lexicon, word_lists, wordings

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_TOKENS = ("<|endoftext|>", "<|beginoftext|>", "<|mask|>", "<|im_start|>", "<|im_end|>", "<|reserved_0|>")
CHATML_MODELS = ("mini-dream", "mini-ar", "mini-wedlm", "mini-nbdiff")
WIDE = ("mini-llada", "mini-dream")  # know the words of further wordings
SPECIAL = {
    "mini-llada": (
        "<|endoftext|>",
        "<|startoftext|>",
        "<|mdm_mask|>",
        "<|start_header_id|>",
        "<|eot_id|>",
        "<|end_header_id|>",
    ),
    **dict.fromkeys(CHATML_MODELS, CHATML_TOKENS),
}
EOS, BOS, MASK = 0, 1, 2
TEMPLATES = {
    "mini-llada": (
        "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
        "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    **dict.fromkeys(CHATML_MODELS, CHATML),
}

CONTEXT = 768  # tokens, prompt and answer
PIECES = 600  # of spelt words, from the most frequent pairs
INVENTED = 1000  # words beside the real ones that the pieces are counted in
REAL = 6  # times that each real word counts
MARKS = (
    ' ["', '["', '", "', '"]', "['", "', '", "']", '","', '[{"', '": "', '": ', ', "', '"}, {"', '"}]', ' "', " '",
    '"', "'", " [", "\n\n", " | ", " - ", "- ", ", ", ": ", ":\n",
)  # fmt: skip
# Marks first, longest first; then a space before a capital or a digit, words, numbers of two digits, single digits,
# and anything else by itself. So a name is one token wherever it is: a model that met "Ada" and " Ada" as
# two learnt to copy the one in 1,200 steps (94 % of names that it never saw) and the other not (27 %).
SPLIT = "|".join(
    [
        *(re.escape(mark).replace("\\ ", " ") for mark in sorted(MARKS, key=len, reverse=True)),
        " (?=[A-Z0-9])",
        " ?[A-Za-z]+",
        r"(?<![0-9_.])[0-9]{2}(?![0-9_.])",
        "[0-9]",
        r"[^A-Za-z0-9]",
    ]
)


def told() -> list[str]:
    """The words that answers are made of, as they are written there."""
    nouns = [*word_lists.NOUNS, *(noun + "s" for noun in word_lists.NOUNS)]
    verbs = [*word_lists.VERBS, *(verb + "s" for verb in word_lists.VERBS)]
    determiners = dict.fromkeys([*word_lists.SINGULAR, *word_lists.PLURAL])
    starts = [word.capitalize() for word in determiners]
    others = [*word_lists.PLACES, *word_lists.ADJECTIVES, *word_lists.PREPOSITIONS, *determiners, *starts]
    return [*lexicon.NAMES, *lexicon.TOWNS, *nouns, *verbs, *others, *word_lists.MINI_SYMBOLS]


def entries(wide: bool = False) -> list[str]:
    """Whole words and marks that are one token each, as plain text. wide: those of further wordings, too."""
    asked = (*wordings.vocabulary(), *(wordings.further_vocabulary() if wide else ()), "user", "assistant", "system")
    requests = [spelling for word in asked for spelling in (word, word.capitalize(), word.upper())]
    idle = [spelling for word in wordings.FILLERS for spelling in (word, word.capitalize())]
    numbers = [*map(str, range(100))]
    single = dict.fromkeys([*told(), *requests, *idle, *numbers])
    return list(dict.fromkeys([*MARKS, *single, *(f" {word}" for word in single if word[0].islower())]))


@cache
def merges() -> tuple[tuple[str, str], ...]:
    """The pairs that spelt words are put together from, learnt from words that training may see."""
    rng = Random(0)
    corpus = [*lexicon.NAMES * REAL, *(lexicon.invent(rng) for _ in range(INVENTED))]
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    learner.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=PIECES, show_progress=False))
    return tuple((first, second) for first, second in json.loads(learner.to_str())["model"]["merges"])


def build(model: str) -> Tokenizer:
    """The tokenizer of a mini model; any text round-trips through its byte alphabet."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocab = {token: index for index, token in enumerate(SPECIAL[model])}
    as_bytes = [level.pre_tokenize_str(entry)[0][0] for entry in dict.fromkeys([*entries(model in WIDE), *new_words()])]
    for token in [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges()), *as_bytes]:
        vocab.setdefault(token, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(merges()), ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL[model]])
    return tokenizer


def new_words() -> list[str]:
    """Words that are one token each and that training never sees."""
    known = {*entries(), *map("".join, merges())}
    return [word for word in (*lexicon.NEW_NAMES, *lexicon.THINGS) if word not in known]


def new_ids(tokenizer: Tokenizer) -> list[int]:
    """Their ids: the last ones."""
    return sorted(tokenizer.encode(word).ids[0] for word in new_words())


def item_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids of what lists are made of: names, towns, pieces of spelt words, and words that training never sees."""
    known = [tokenizer.encode(word).ids[0] for word in (*lexicon.NAMES, *lexicon.TOWNS)]
    spelt = (tokenizer.token_to_id("".join(pair)) for pair in merges())
    pieces = [number for number in spelt if number is not None]
    return sorted({*known, *pieces, *new_ids(tokenizer)})


def texts(tokenizer: Tokenizer) -> list[str]:
    """The text of each id."""
    return [tokenizer.decode([index], skip_special_tokens=False) for index in range(tokenizer.get_vocab_size())]


def digest(tokenizer: Tokenizer) -> str:
    """A hash of everything that decides how text becomes ids."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()[:16]


def save(model: str, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja, as transformers 5 writes and reads them."""
    eos, bos, mask, *others = SPECIAL[model]
    config = {
        "backend": "tokenizers",
        "bos_token": bos,
        "clean_up_tokenization_spaces": False,
        "eos_token": eos,
        "extra_special_tokens": others,
        "mask_token": mask,
        "model_max_length": CONTEXT,
        "pad_token": eos,
        "padding_side": "left",
        "tokenizer_class": "TokenizersBackend",
    }
    tokenizer = build(model)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATES[model])
