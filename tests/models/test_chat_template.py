"""Chat templates are rendered as transformers renders them, and refused with its words."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from model_folders import HEADERS, IMSTYLE, byte_tokenizer, write_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from dllm.parts import CHECKPOINTS, Tokenizer, UserError, shipped_models
from tests.support.tiny import TEMPLATE

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "mask_token": "<|mask|>", "pad_token": "<|pad|>"}
# The manner of LLaDA2's and SDAR's published templates: statements on lines of their own, a namespace, thoughts.
BLOCKS = """\
{%- set found = namespace(system='', last=-1) -%}
{%- if tools %}{{ raise_exception('no tools here') }}{% endif -%}
{%- for message in messages %}
    {%- if loop.first and message.role == 'system' %}
        {%- set found.system = message.content %}
        {%- continue %}
    {%- endif %}
    {%- set found.last = loop.index0 %}
    {% if message.role == "user" %}
<role>HUMAN</role>{{ message['content'] | trim }}
    {% elif message.role == "assistant" %}
        {%- if message.reasoning_content is defined and message.reasoning_content %}
<think>{{ message.reasoning_content }}</think>
        {%- endif %}
<role>ASSISTANT</role>{% generation %}{{ message.content.split('</think>')[-1].lstrip('\\n') }}{% endgeneration %}
    {% else %}
        {{- raise_exception('Unknown role ' + message.role) }}
    {% endif %}
{%- endfor %}
{{- found.system }}|{{ found.last }}
{% if add_generation_prompt %}<role>ASSISTANT</role>{% endif %}

"""
# The manner of the families of 2026, in words of ours. Qwen3's (Tiny-A2D, SDAR, DreamReasoner, RND1): thoughts of turns
# before the last question are left out, and enable_thinking=false writes an empty thought before the answer.
THINKING = """\
{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- set found = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set at = (messages|length - 1) - loop.index0 %}
    {%- if found.searching and message.role == 'user' and message.content is string %}
        {%- set found.searching = false %}
        {%- set found.last = at %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set text, thought = message.content, '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in text %}
            {%- set thought = text.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set text = text.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > found.last %}{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}
        {{- text + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
# Qwen2.5's (Fast-dLLM v2): a system turn of its own where the conversation has none.
WITH_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nOurs.<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') or (m.role == 'system' and loop.first) %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% elif m.role == 'assistant' %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content }}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FAMILIES_OF_2026 = [THINKING, WITH_SYSTEM]
PUBLISHED = (
    FAMILIES_OF_2026
    + [HEADERS, IMSTYLE, TEMPLATE, BLOCKS]
    + [(CHECKPOINTS / name / "chat_template.jinja").read_text() for name in shipped_models()]
)
AWKWARD = [
    # whitespace
    "  {% if true %}\n  a\n  {% endif %}\n{# a note #}\n b\n\n",
    "{{ 'a' }}\n",
    "\r\n{%- if 1 %} x{% endif -%}  \r\n y",
    # names that are there, and those that are not
    "{{ bos_token }}{{ eos_token }}{{ mask_token }}{{ pad_token }}{{ unk_token }}{{ additional_special_tokens }}",
    "{{ tools is none }}{{ tools is defined }}{{ documents is none }}{{ add_generation_prompt }}{{ nothing }}",
    "{{ messages[0].name }}{{ messages[0].thinking }}{{ messages[-1]['reasoning_content'] is defined }}",
    "{{ messages | length }}{{ messages[0] | tojson }}{% for key in messages[0] %}{{ key }},{% endfor %}",
    "{{ nothing.at_all }}",
    "{{ messages[9]['content'] }}",
    "{{ messages + 1 }}",
    "{{ messages[0]['content'] / 2 }}",
    # JSON
    "{{ messages | tojson(indent=2) }}",
    "{{ {'b': 1, 'a': '<é>'} | tojson(sort_keys=true, separators=(',', ':')) }}",
    "{{ messages | tojson(ensure_ascii=true) }}",
    "{{ '<b>' | e }}{{ '<b>' | safe }}",
    # what jinja itself cannot
    "{{ strftime_now('%Y') }}",
    "{{ strftime_now(1) }}",
    "{{ raise_exception('users only') }}",
    "{{ dict(a=1, **{'b': 2}) }}{{ dict.fromkeys('ab') }}{{ dict.fromkeys('ab', 0) }}",
    "{{ dict(1) }}",
    "{{ dict(a=1).items() | list }}",
    "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
    "{% set n = 0 %}{% generation %}{% set n = 1 %}{{ n }}{% endgeneration %}{{ n }}",
    "{% for m in messages %}{% generation %}{{ loop.index }}{{ m.role }}{% endgeneration %}{% endfor %}",
    "{% generation %}{% generation %}a{% endgeneration %}{% endgeneration %}",
    "{% generation %}\n a\n{% endgeneration %}\nb",
    # namespaces
    "{% set n = namespace(a=1) %}{% set n.a = n.a + 1 %}{{ n.a }}{{ n.b }}",
    "{{ namespace(self=3).self }}",
    "{{ namespace({'a': 1}, b=2).a }}",
    "{{ namespace(1) }}",
    "{{ namespace({1: 2}) is defined }}",
    # the sandbox
    "{{ messages.__class__ }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.append(1) }}",
    "{% set _ = messages[0].update(a=1) %}",
    "{{ messages.clear }}{{ messages | length }}",
    "{{ range.__globals__ }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ '%s' | format(messages[0].role) }}",
    "{{ 'a'.join(['b', 'c']) }}",
    "{{ range(1000000) }}",
    "{{ range(3) | list }}",
    # macros, filters, tests
    "{% macro turn(m) %}[{{ m.role }}]{{ caller() if caller }}{% endmacro %}{{ turn(messages[0]) }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('|') }}",
    "{{ messages[1:] | map(attribute='role') | list }}{{ messages[::-1][0].role }}",
    "{{ 'x' | no_such_filter }}",
    "{% if messages is mapping %}a{% elif messages is iterable %}b{% endif %}{{ messages[0] is mapping }}",
    "{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 10 }}{{ 'a' ~ 1 }}{{ 'b' in 'abc' }}{{ none }}{{ true }}",
    "{% include 'x' %}",
    "{% set text %}{{ messages[0].content }}{% endset %}{{ text | upper }}",
    "{% filter upper %}a{% endfilter %}",
]
# Refused in words that name what stands behind: of these the kind of error is compared, and its words are ours.
OWN_WORDS = [
    "{% for m in messages %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",  # a line of compiled code
    "{{ dict | tojson }}",
    "{{ dict.items(messages[0]) }}",
    "{{ raise_exception() }}",
    "{{ namespace(__class__=1) }}",
    "{% set n = namespace() %}{% set n._a = 1 %}",
    "{{ raise_exception.__globals__ }}",
    "{{ dict.__class__ }}",
]
USER = {"role": "user", "content": " What is <2> + 'é'?\n"}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": "Brief.\t"}, USER, {"role": "assistant", "content": "<think>\n</think>\n4"}, USER],
    [USER, {"role": "assistant", "content": "4", "thinking": "two and two", "name": None}, USER],
    [USER, {"role": "assistant", "content": "4", "reasoning": "", "thinking": "a"}, {"role": "tool", "content": ""}],
    [{"role": "user", "content": "{{ bos_token }}{% raw %}\ud800", "name": "Ada", "tools": [{"x": 1.5}]}],
]


def outcome(render: Any) -> tuple[str, str]:
    """What comes out: a text, or the error's class and words."""
    try:
        return "text", render()
    except Exception as error:
        own = error.__cause__ if isinstance(error, UserError) else error
        return type(own).__name__, str(own)


@pytest.mark.parametrize("template", PUBLISHED + AWKWARD + OWN_WORDS)
def test_texts_and_refusals_are_those_of_transformers(template: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_tokenizer({}), chat_template=template, **SPECIAL)
    ours = Tokenizer.from_folder(tmp_path)
    theirs = PreTrainedTokenizerFast(tokenizer_object=Backend(models.BPE()), chat_template=template, **SPECIAL)
    for messages in CONVERSATIONS:
        here = outcome(partial(ours.render, messages))
        there = outcome(partial(theirs.apply_chat_template, messages, tokenize=False, add_generation_prompt=True))
        assert here == there or (template in OWN_WORDS and here[0] == there[0] != "text")


@pytest.mark.parametrize("switches", [{}, {"enable_thinking": False}, {"enable_thinking": True}])
@pytest.mark.parametrize("template", FAMILIES_OF_2026 + [BLOCKS])
def test_switches_do_as_in_transformers(template: str, switches: dict[str, Any], tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_tokenizer({}), chat_template=template, **SPECIAL)
    ours = Tokenizer.from_folder(tmp_path)
    theirs = PreTrainedTokenizerFast(tokenizer_object=Backend(models.BPE()), chat_template=template, **SPECIAL)
    told = partial(theirs.apply_chat_template, tokenize=False, add_generation_prompt=True, **switches)
    for messages in CONVERSATIONS:
        assert outcome(partial(ours.render, messages, switches)) == outcome(partial(told, messages))
    empty = ours.render([USER], {"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")
    assert empty == (template == THINKING)


def test_the_cases_are_rendered_and_refused_in_many_ways(tmp_path: Path) -> None:
    """So that equality above is not that of one error."""
    kinds, texts = set(), set()
    for template in PUBLISHED + AWKWARD:
        write_tokenizer(tmp_path, byte_tokenizer({}), chat_template=template, **SPECIAL)
        kind, text = outcome(lambda: Tokenizer.from_folder(tmp_path).render([USER]))
        kinds.add(kind)
        texts.add(text)
    assert kinds >= {"text", "TemplateError", "SecurityError", "UndefinedError", "TypeError", "TemplateAssertionError"}
    assert len(texts) > 40


def test_an_empty_conversation_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_tokenizer({}), chat_template=IMSTYLE)
    with pytest.raises(UserError, match="at least one message"):
        Tokenizer.from_folder(tmp_path).render([])


DOUBLED = (
    "{%% set n = namespace(s='x') %%}{%% for i in range(40) %%}{%% set n.s = n.s %s n.s %%}{%% endfor %%}{{ n.s }}"
)
ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "a power of powers": "{% set n = messages | length + 8 %}{{ n ** n ** n ** n }}",
    "a long text": "{{ 'x' * 3000000000 }}",
    "a long list": "{{ [0] * 3000000000 }}",
    "a text that doubles": DOUBLED % "~",
    "the same by a sum": DOUBLED % "+",
    "a wide field": "{{ '%2000000000d' % 1 }}",
    "words without end": "{{ lipsum(n=100000) }}",
    "what no template needs": "{{ cycler('a').next() }}{{ joiner()() }}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_without_end_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dllm.models.text.chat_template.RENDER_SECONDS", 0.1)
    write_tokenizer(tmp_path, byte_tokenizer({}), chat_template=ENDLESS[name])
    found, before = Tokenizer.from_folder(tmp_path), time.thread_time()
    for render in (found.render, found.encode_chat):
        with pytest.raises(UserError, match="the chat template refuses these messages"):
            render([{"role": "user", "content": "a"}])
    assert "writes no message of a user" in found.template_problem()
    assert time.thread_time() - before < 2


TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "w7", "parameters": {}}}]}
NAMED = {
    "default": "d {{ messages[0]['content'] }}{{ turn_token }}",
    "tool_use": "t {{ tools[0].function.name }}",
    "rag": "{{ x",
}


@pytest.mark.parametrize("form", ["object", "list", "files", "files without a default"])
def test_named_templates_are_chosen_as_transformers_does(form: str, tmp_path: Path) -> None:
    """Also by the tokenizer that is written again, and with special tokens of the model's own names."""
    own: dict[str, Any] = {"extra_special_tokens": {"turn_token": "<t>"}, "image_token": "<i>"}
    named = NAMED | {"default": NAMED["default"] + "{{ image_token }}"}
    listed = [{"name": name, "template": text} for name, text in named.items()]
    more = {"object": {"chat_template": named}, "list": {"chat_template": listed}}.get(form, {})
    write_tokenizer(tmp_path, byte_tokenizer({"<t>": True, "<i>": True}), **own, **more)
    if form.startswith("files"):
        (tmp_path / "additional_chat_templates").mkdir()
        for name, text in named.items():
            where = "chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja"
            if name != "default" or form == "files":
                (tmp_path / where).write_text(text)
    theirs, ours = PreTrainedTokenizerFast.from_pretrained(tmp_path), Tokenizer.from_folder(tmp_path)
    (tmp_path / "again").mkdir()
    ours.save(tmp_path / "again")
    talk = [{"role": "user", "content": "a"}]
    for found in (ours, Tokenizer.from_folder(tmp_path / "again")):
        for beside in (TOOLS, {}):
            if not beside and form == "files without a default":
                assert not found.has_chat_template
                with pytest.raises(UserError, match="has no chat template"):
                    found.render(talk)
                continue
            expected = theirs.apply_chat_template(talk, tokenize=False, add_generation_prompt=True, **beside)
            assert found.render(talk, beside) == expected
            assert found.decode(found.encode_chat(talk, "", beside), skip_special=False) == expected
    assert "tools" in ours.template_names
