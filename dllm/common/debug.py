"""Whether to check invariants that cost a copy from the device in every turn: in tests, and with DLLM_DEBUG=1."""

from __future__ import annotations

import os

ON = os.environ.get("DLLM_DEBUG", "") not in ("", "0")
