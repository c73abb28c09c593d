"""One torch thread for every test: with two, a busy neighbour makes each small operation wait."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
