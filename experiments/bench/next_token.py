"""Left to right beside transformers' own ``generate``: ``python -m experiments.bench.next_token``.

Random weights under LlamaForCausalLM, in float32, one thread, greedy: ``experiment=ar`` and ``generate`` with its cache
decode the same prompts, one after the other, another way first each time. Tokens must be equal. Prints a Markdown table
of CPU seconds a token, the least of the rounds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from dllm import Decoder, load, part
from experiments.support import markdown

SHAPES = {
    "width 128, 4 layers": {"hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 384},
    "width 896, 6 layers": {"hidden_size": 896, "num_hidden_layers": 6, "intermediate_size": 3584},
}
VOCABULARY, PROMPT, ANSWER, ROUNDS = 32_000, 128, 32, 2
HEADS = ("shape", "rows", "tokens equal", "generate, CPU ms a token", "dllm, CPU ms a token", "times as fast")


def row(folder: Path, name: str, rows: int) -> list[str]:
    """One row of the table. folder: the checkpoint."""
    from transformers import AutoModelForCausalLM

    noise = torch.Generator().manual_seed(rows)
    prompts = torch.randint(3, VOCABULARY, (rows, PROMPT), generator=noise)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = Decoder(
        load(folder),
        part("sampler", "order", positions="left_to_right"),
        "whole",
        "finished",
        "none",
        gen_length=ANSWER,
        batch_size=rows,
    )

    def generate() -> list[list[int]]:
        found = theirs.generate(
            prompts,
            max_new_tokens=ANSWER,
            min_new_tokens=ANSWER,
            do_sample=False,
            attention_mask=torch.ones_like(prompts),
            pad_token_id=0,
        )
        return [one[PROMPT:] for one in found.tolist()]

    def decode() -> list[list[int]]:
        return [one.canvas for one in ours(prompts.tolist())]

    ways, least, tokens = [generate, decode], [float("inf")] * 2, [[[0]]] * 2
    for number in range(ROUNDS):
        for at in (number % 2, 1 - number % 2):
            began = time.process_time()
            tokens[at] = ways[at]()
            least[at] = min(least[at], time.process_time() - began)
    counted = [one / rows / ANSWER * 1000 for one in least]
    same = sum(one == other for one, other in zip(*tokens, strict=True))
    return [name, str(rows), f"{same} of {rows}", *(f"{one:.2f}" for one in counted), f"{least[0] / least[1]:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    found = []
    for name, shape in SHAPES.items():
        config = LlamaConfig(
            **shape,
            vocab_size=VOCABULARY,
            num_attention_heads=shape["hidden_size"] // 64,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            eos_token_id=2,
            pad_token_id=0,
        )
        torch.manual_seed(0)
        with TemporaryDirectory() as place:
            LlamaForCausalLM(config).save_pretrained(place)
            found += [row(Path(place), name, rows) for rows in (1, 8)]
    print(markdown.table(HEADS, found))


if __name__ == "__main__":
    main()
