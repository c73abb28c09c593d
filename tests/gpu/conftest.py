"""Without DLLM_DEVICE one file says why it skips, and the others, which take seconds to collect, are left out."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("DLLM_DEVICE") else ["test_gpu_[!d]*.py"]
