"""Commit early positions and informative tokens first (PC-Sampler, arXiv 2508.13021).

The rule is that of NEUIR/PC-Sampler@8b106b0, src/generate.py: generate_with_pc_sampler.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dllm.common.errors import Refusal, in_range, in_words
from dllm.common.ranking import top_k_mask
from dllm.contract import State, Step, View
from dllm.contract.canvas import PerRequest
from dllm.contract.clash import Clash
from dllm.contract.setting import Setting
from dllm.parts.samplers.scheduled import Scheduled

SMOOTHING = 1e-9  # added to a frequency before its logarithm, as in the published code


class PC(Scheduled):
    """Commit as many as the fixed schedule says, ranked by exp(-decay * offset) * min(cap, -p log(f(token) + 1e-9)).

    offset counts from the block's start. frequencies: a JSON file with the frequencies f of a corpus, in the published
    format ``{"num_token": N, "p_baseline_dict": {id: count}}`` (``experiments.mini.token_frequencies`` counts a text),
    or ``{id: relative frequency}``. Without a file the second factor is the probability p itself. absent: f of the
    tokens that the file lacks (None: that of a token that occurs once, or of the rarest one where the file has no
    counts). steps None: one token per forward.
    """

    traits = Scheduled.traits.but(by_confidence=True, thresholds=False)
    per_request = ("decay",)
    clashes = (
        *Scheduled.clashes,
        Clash(
            lambda c: (
                c.part.frequencies is not None
                and (last := max(c.part.frequencies.table)) >= c.model.vocab
                and {"sampler.frequencies": str(c.part.frequencies.file), "last": last, "end": c.model.vocab - 1}
            ),
            "{sampler.frequencies:quoted} counts token {last:value}, but the vocabulary of this model ends at "
            "{end:value}: it was counted with another tokenizer.",
            (),
            "Count a text with this one: python -m experiments.mini.token_frequencies FILE --model MODEL.",
        ),
    )

    def __init__(
        self,
        decay: PerRequest = 0.25,
        cap: float = 10.0,
        frequencies: str | None = None,
        steps: int | None = None,
        absent: float | None = None,
    ) -> None:
        in_range("sampler.decay", decay, 0.0)
        in_range("sampler.cap", cap, 0.0)
        in_range("sampler.absent", absent, 0.0, 1.0, "It is a relative frequency.")
        super().__init__(steps)
        self.decay, self.cap = decay, cap
        self.frequencies = None if frequencies is None else Frequencies.read(Path(frequencies).expanduser(), absent)

    def warning(self, setting: Setting) -> str | None:
        if not torch.as_tensor(self.decay).any():
            return None
        return (
            f"sampler.decay={self.decay}: positions further right wait, however sure the model is of them: mini-llada "
            "gets 87 % right, and 97 % with sampler.decay=0. Compare the two on your own prompts."
        )

    def shared(self) -> dict[str, Tensor]:
        """-log of each token's frequency, where there is a table."""
        return {} if self.frequencies is None else {"surprise": self.frequencies.surprise()}

    def step(self, view: View, state: State) -> Step:
        offset = view.canvas.columns - view.blocks.begin[:, None]
        rate = view.scores.confidence
        if self.frequencies is not None:
            surprise = view.shared.tensor("surprise")
            rate = (rate * surprise[view.scores.token.clamp(max=len(surprise) - 1)]).clamp(max=self.cap)
        rate = rate * torch.exp(-state["decay"][:, None] * offset)
        return view.step(top_k_mask(rate, view.open, self.quota(view, state)))


@dataclass(frozen=True)
class Frequencies:
    """How often tokens occur in a corpus."""

    file: Path  # where the table is
    table: dict[int, float]  # relative frequency by token id
    absent: float  # of every other token

    @staticmethod
    def read(file: Path, absent: float | None = None) -> Frequencies:
        """Read either format. Raises UserError for a file that is not such a table."""
        try:
            data = json.loads(file.read_text())
            total = float(data["num_token"]) if "p_baseline_dict" in data else 1.0
            table = {int(token): float(f) / total for token, f in data.get("p_baseline_dict", data).items()}
        except (OSError, ValueError, AttributeError, TypeError, LookupError, ZeroDivisionError) as error:
            raise Refusal(
                f"{{sampler.frequencies:quoted}} is not a table of token frequencies ({in_words(error)}): it must be "
                '{"num_token": N, "p_baseline_dict": {id: count}} or {id: relative frequency}, in JSON.',
                [str(file)],
            ) from error
        if not table or min(table) < 0 or not all(0 < f <= 1 for f in table.values()):
            raise Refusal(
                "{sampler.frequencies:quoted} must map token ids to relative frequencies in (0, 1], or to counts of "
                "at most num_token.",
                [str(file)],
            )
        if absent is None:
            absent = 1 / total if "p_baseline_dict" in data else min(table.values())
        return Frequencies(file, table, absent)

    def surprise(self) -> Tensor:
        """-log(f + 1e-9) by token id [V + 1], float64. The last entry counts for every id from there on."""
        out = torch.full((max(self.table) + 2,), self.absent, dtype=torch.float64)
        out[list(self.table)] = torch.tensor(list(self.table.values()), dtype=torch.float64)
        return -(out + SMOOTHING).log()
