"""``mini-ar`` under the name of the class whose weights it has: a small Llama that can read and write."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from dllm.parts import locate


def mini_llama(folder: Path) -> Path:
    """NBDiff's body is Llama's with biases of attention, and blocks of one column are no blocks."""
    shutil.copytree(locate("mini-ar"), folder)
    config = json.loads((folder / "config.json").read_text())
    for key in ("block_length", "block_size", "mask_token_id", "auto_map"):
        config.pop(key, None)
    bias = config.pop("bias", True)
    told = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": bias}
    (folder / "config.json").write_text(json.dumps({**config, **told}))
    return folder
