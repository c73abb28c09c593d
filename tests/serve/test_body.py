"""Bodies that are no plain object of JSON are refused before anything reads them."""

from __future__ import annotations

import json

import pytest

from dllm.serve.api_errors import ApiError
from dllm.serve.body import MAX_BYTES, MAX_DEPTH, parsed


@pytest.mark.parametrize(
    ("raw", "status", "sentence"),
    [
        (b"", 400, "it is no JSON"), (b"{", 400, "it is no JSON"), (b"\xff{}", 400, "it is no UTF-8 (byte 0)"),
        (b"[]", 400, "it is no object"), (b"null", 400, "it is no object"), (b'"a"', 400, "it is no object"),
        (b'{"temperature": NaN}', 400, "NaN is no number of JSON"), (b'{"n": Infinity}', 400, "Infinity is no number"),
        (b'{"n": -Infinity}', 400, "-Infinity is no number"), (b'{"n": 1e999}', 400, "inf is no number of JSON"),
        (b'{"n": ' + b"9" * 30 + b"}", 400, "more than 64 bits"),
        (b'{"n": ' + b"9" * 5000 + b"}", 400, "it is no JSON"),
        (b'{"messages": "\\ud800"}', 400, "half of a surrogate pair"), (b'{"\\udfff": 1}', 400, "half of a surrogate"),
        (b'{"n": 1, "n": 2}', 400, "'n' stands in one object twice"),
        (b'{"a": ' + b"[" * 80 + b"]" * 80 + b"}", 400, f"nested deeper than {MAX_DEPTH}"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, f"nested deeper than {MAX_DEPTH}"),
        (b'{"a": "' + b"x" * MAX_BYTES + b'"}', 413, f"more than {MAX_BYTES}"),
    ],
    ids=range(18),
)  # fmt: skip
def test_a_body_that_is_no_plain_object_is_refused(raw: bytes, status: int, sentence: str) -> None:
    with pytest.raises(ApiError) as refused:
        parsed(raw)
    assert refused.value.status == status and sentence in refused.value.message
    assert json.dumps(refused.value.to_json()).encode()


def test_a_body_of_another_type_is_refused() -> None:
    for content_type in (None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        with pytest.raises(ApiError, match=r"must be application/json") as refused:
            parsed(b"{}", content_type)
        assert refused.value.status == 415
    assert parsed('{"a": "é\\ud83d\\ude00"}'.encode(), "Application/JSON; charset=utf-8") == {"a": "é\U0001f600"}
