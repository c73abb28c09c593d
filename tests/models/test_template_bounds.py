"""Whatever a chat template says, a rendering takes little time and memory, and what templates are for still works."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path

import pytest
from jinja2 import TemplateError
from model_folders import byte_tokenizer, write_tokenizer

from dllm.parts import Tokenizer, UserError, compile_template, render_messages, shared_budget

USER = [{"role": "user", "content": "x"}]
SLOW_TO_PARSE = [
    "{% set a = 'x' * 3999999 ~ 'y' %}{% set b = 'x' * 3999999 ~ 'z' %}"
    + "{% if a < b and b > a %}{% endif %}" * 1700
    + "{% for i in range(100000) %}{{ a < b }}{% endfor %}",
    "{{ 1" + "+1" * 30000 + " }}",
    "x" * 300000,
    "{{ " + "not " * 15000 + "1 }}",
    "{% if 1 %}" * 3000,
    "{{ " + "9" * 5000 + " }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}"
    + "{% if 1 %}y{% endif %}" * 1000
    + "{% endfor %}{% endfor %}",
]
HOSTILE = json.loads((Path(__file__).parents[1] / "data" / "hostile_templates.json").read_text()) + SLOW_TO_PARSE


@pytest.mark.daily(30)
@pytest.mark.parametrize("template", HOSTILE, ids=lambda text: text[:60])
def test_no_template_takes_more_than_its_share(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written, or refused in words; the peak is of all that Python allocates."""
    monkeypatch.setattr("dllm.models.text.chat_template.RENDER_SECONDS", 0.2)
    tracemalloc.start()
    before = time.thread_time()
    try:
        why = "" if render_messages(compile_template(template), USER, {}) is not None else "nothing"
    except Exception as error:  # a template may fail in any way that Python can
        assert not isinstance(error, MemoryError | AttributeError)
        why = str(error)
        assert why
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    assert time.thread_time() - before < 3  # under tracemalloc, which takes most of it
    assert len(why) < 20_000


def test_renderings_of_one_prompt_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dllm.models.text.chat_template.RENDER_SECONDS", 0.3)
    loops = "{% for a in range(999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
    endless = compile_template(loops)
    before = time.thread_time()
    with shared_budget():
        for _ in range(5):
            with pytest.raises(TemplateError, match="does not end within"):
                render_messages(endless, USER, {})
    assert time.thread_time() - before < 0.6


def test_nothing_is_left_of_a_rendering_that_holds_itself() -> None:
    """Names that stand for themselves, and macros, would keep what they hold until Python looks for circles."""
    template = compile_template(
        "{% macro f() %}{% endmacro %}{% set n = namespace() %}{% set n.me = n %}{% set n.x = 'x' * 3000000 %}"
        "{% set top = 'y' * 3000000 %}{{ n.x | length }}"
    )
    tracemalloc.start()
    for _ in range(10):
        assert render_messages(template, USER, {}) == "3000000"
    left = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert left < 3e6


LONG = "é" * 200_000
ORDINARY = {
    "{{ 'x' | center(9) }}|{{ 'x'.ljust(3) }}|{{ 'x'.rjust(3) }}|{{ '7'.zfill(3) }}": "    x    |x  |  x|007",
    "{{ 'a\nb' | indent(2) }}|{{ 'a\nb' | indent('> ', true) }}": "a\n  b|> a\n> b",
    "{{ [1, 2, 3] | batch(2, 0) | list }}{{ [1, 2, 3] | slice(2) | list }}": "[[1, 2], [3, 0]][[1, 2], [3]]",
    "{{ 'a-b' | replace('-', '+') }}{{ 'a-b'.replace('-', '', 1) }}": "a+bab",
    "{{ 'a b c d' | truncate(5, true, '..') }}|{{ 'aa bb' | wordwrap(2) }}": "a b c d|aa\nbb",
    "{{ [{'a': 1}] | tojson(indent=2) }}": '[\n  {\n    "a": 1\n  }\n]',
    "{{ '{:>4}|{a!r}'.format(1, a='b') }}{{ '**%s** %5.1f %%' % ('a', 2) }}": "   1|'b'**a**   2.0 %",
    "{{ 'a\tb'.expandtabs(3) }}{{ 'a,b'.split(',') }}{{ 'a b'.split() | join('-') }}": "a  b['a', 'b']a-b",
    "{{ [3, 1, 2] | sort | join(',') }}{{ [[1], [2]] | sum(start=[]) }}{{ [1, 2] | sum }}": "1,2,3[1, 2]3",
    "{{ (['a', 'b'] | select('in', 'a')) is sequence }}{{ ['a', 'b'] | select('in', 'a') | list }}": "False['a']",
    "{% if [] | select %}always{% endif %}{{ [1, 2][::-1] }}{{ 'abc'[1:] }}{{ (1, 2)[:1] }}": "always[2, 1]bc(1,)",
    "{{ 7.456 | round(2) }}{{ '12' | int + 2 ** 10 }}{{ 'ab' * 2 }}{{ [0] * 3 }}": "7.461036abab[0, 0, 0]",
    "{% for a in [1, [2, [3]]] recursive %}{{ loop(a) if a is sequence else a }}{% endfor %}": "123",
    "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(*[1, 2], **{'b': 3}) }}": "1(2,){'b': 3}",
    "{{ 'ß' | upper }}{{ 'a b' | title }}{{ '<' | e }}{{ ('<' | safe) + '&' }}{{ 'a' ~ 1 }}": "SSA B&lt;<&amp;a1",
    "{{ messages[0].content | length }}{{ messages[0].content.count('é') }}": "200000200000",
    "{{ (messages[0].content ~ '!') | trim | replace('é', 'ee') | length }}": "400001",
}


@pytest.mark.parametrize("template", ORDINARY)
def test_what_templates_write_is_written(template: str) -> None:
    """By Jinja's documentation."""
    assert render_messages(compile_template(template), [{"role": "user", "content": LONG}], {}) == ORDINARY[template]


def test_a_long_conversation_takes_a_fifth_of_what_it_may() -> None:
    rest = "{% set rest = 'x' * 4000000 %}" * 13  # 52 of 67 million bytes
    each = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content | trim ~ ' ' }}{% endfor %}"
    talk = [{"role": "user", "content": "word " * 20} for _ in range(5000)]
    assert len(render_messages(compile_template(rest + each), talk, {})) == 5000 * (8 + 99 + 1)


def test_a_refusal_is_a_sentence(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_tokenizer({}), chat_template="{{ 'x' | center(2000000000) }}")
    with pytest.raises(UserError, match="it makes more than 64 MiB of texts and lists. Change them"):
        Tokenizer.from_folder(tmp_path).render(USER)
