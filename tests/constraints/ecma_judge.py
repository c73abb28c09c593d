"""A second engine with ECMA-262's meaning: Node's RegExp, one process for all patterns."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence

import pytest

# Under ``u``; without it what is an error there alone. A pattern that is neither has null.
SCRIPT = r"""
const asked = JSON.parse(require('fs').readFileSync(0, 'utf8'));
const read = p => { for (const flag of ['u', '']) { try { return new RegExp(p, flag) } catch {} } return null };
console.log(JSON.stringify(asked.map(([pattern, texts]) => {
  const found = read(pattern);
  return found && texts.map(text => found.test(text));
})));
"""


def matches(asked: Sequence[tuple[str, Sequence[str]]]) -> list[list[bool] | None]:
    """Of each pattern in which of its texts it is found; None: it is a syntax error. Skips where Node is missing."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("install Node.js to judge patterns of ECMA-262")
    told = subprocess.run([node, "-e", SCRIPT], input=json.dumps(asked), capture_output=True, text=True, check=True)
    found: list[list[bool] | None] = json.loads(told.stdout)
    return found
