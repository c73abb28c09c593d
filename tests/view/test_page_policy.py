"""A trace page runs its own script alone, and holds a prompt that spells its template's names."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from dllm import Decoder, load
from dllm.view.page import Pane, trace_page

PROMPT = 'Sort {{MARKS}}{{DATA}} the list:\n["Kai", "Emma"]'


def test_a_page_allows_its_script_by_hash_and_keeps_a_prompt_as_it_is() -> None:
    trace = Decoder(load("mini-llada"), sampler="confidence", gen_length=8)([PROMPT], trace=True)[0].trace
    page = trace_page([Pane.of("", trace.content(), trace)])
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}';" in page and "default-src 'none'" in page
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    (pane,) = json.loads(data)["panes"]
    assert PROMPT in "".join(pane["words"][str(token)] for token in pane["prompt"])
