"""Whatever a chat template does with a message, only the template's own text makes special tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_folders import HEADERS, IMSTYLE, byte_tokenizer, write_tokenizer

from dllm.parts import Marks, Tokenizer, UserError

WORDS = ("<|eot|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|mask|>", "<s>")
EOT, END, USER, ASSISTANT, MASK, BEGIN = range(256, 262)
EACH = "{{% for m in messages %}}{}{{% endfor %}}<|im_end|>"
ROLES = EACH.format("{{ '<|' + m.role + '|>' }}{{ m.content }}")


def tokenizer(folder: Path, template: str) -> Tokenizer:
    backend = byte_tokenizer(dict.fromkeys(WORDS, True))
    assert [backend.token_to_id(word) for word in WORDS] == list(range(256, 262))
    write_tokenizer(folder, backend, chat_template=template, mask_token="<|mask|>", bos_token="<s>")
    return Tokenizer.from_folder(folder)


def special(tokenizer: Tokenizer, *contents: str, begin: str = "") -> list[int]:
    """The special ids of a conversation, none of whose text is lost."""
    messages = [{"role": "user", "content": content} for content in contents]
    ids = tokenizer.encode_chat(messages, begin)
    assert tokenizer.decode(ids, skip_special=False) == tokenizer.render(messages) + begin
    return [token for token in ids if token > 255]


@pytest.mark.parametrize(
    ("body", "content"),
    [
        ("<{{ m.content }}>", "|eot|"),
        ("<|{{ m.content }}", "mask|>"),
        ("{{ m.content | lower }}", "<|EOT|>"),
        ("{{ m.content | list | reverse | join }}", ">|tos|>|toe|<"),
        ("{{ m.content | replace('_', '|') }}", "<_eot_>"),
        ("{{ m.content.split('#') | join }}", "<|e#ot|>"),
        ("{{ m.content[1:] }}", "#<|eot|>"),
        ("{{ m.content }}{{ m.content }}", "eot|><|"),
        ("{{ '<%s>' | format(m.content) }}", "|im_end|"),
        ("{{ m.content | trim }}", "  <|eot|><|im_end|> "),
        ("{{ m | tojson }}", "<|mask|>"),
        ("{% set n = namespace(t='<') %}{% set n.t = n.t ~ m.content %}{{ n.t ~ '>' }}", "|mask|"),
    ],
    ids=str,
)
def test_no_template_makes_a_special_token_of_a_message(body: str, content: str, tmp_path: Path) -> None:
    made = tokenizer(tmp_path, EACH.format(body))
    assert special(made, content) == special(made, "a") == [END]


def test_nor_of_two_messages_or_of_the_answers_beginning(tmp_path: Path) -> None:
    made = tokenizer(tmp_path, "{{ bos_token }}<|im_end|>{% for m in messages %}{{ m.content }}{% endfor %}")
    assert special(made, "a <|eo", "t|> b") == [BEGIN, END] == special(made, "a <|eo", begin="t|><|mask|>")


@pytest.mark.parametrize("template", [HEADERS, IMSTYLE], ids=["llada", "qwen"])
def test_ids_are_those_of_the_whole_text_where_a_message_spells_nothing(template: str, tmp_path: Path) -> None:
    made = tokenizer(tmp_path, template)
    for content in ("a", " a\n", "<|", "|>", "<|e ot|>", "é€😀"):
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": content}]
        expected = made.backend.encode(made.render(messages), add_special_tokens=False).ids
        assert made.encode_chat(messages) == expected


def test_a_template_may_put_its_tokens_together_from_roles(tmp_path: Path) -> None:
    made = tokenizer(tmp_path, ROLES)
    assert special(made, "a", "b") == [USER, USER, END] == special(made, "<|user|>", "<|eot|>x")


def test_where_it_cannot_be_told_from_a_message_that_is_refused(tmp_path: Path) -> None:
    made = tokenizer(tmp_path, ROLES.replace("m.content }}", "m.content }}|>"))
    assert special(made, "a", "<|eot|>") == [USER, USER, END]
    with pytest.raises(UserError, match=r"puts '<\|user\|>' together from pieces, and a message may do so, too"):
        special(made, "a", "<|eot")


def test_what_a_template_cannot_render_shows_no_marks(tmp_path: Path) -> None:
    made = tokenizer(tmp_path, "{{ raise_exception('no <|eot|> here') }}")
    with pytest.raises(UserError) as refused:
        special(made, "a")
    assert "no <|eot|> here" in str(refused.value) and str(refused.value).isprintable()


def test_marks_that_a_template_tears_apart_mark_nothing() -> None:
    marks = Marks("B", "E", "C")
    assert marks.around("a<x>b", [(1, 4)]) == "aB<x>Eb"
    assert marks.split("aB<x>EbC<x>") == [("a<x>b", {(1, 4)}), ("<x>", set())]
    assert marks.split("a<x>EbB<x>") == [("a<x>b<x>", {(-1, 4)})]
