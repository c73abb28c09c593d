"""Two kinds of log-probabilities of a decoded text, in nats and by position of the answer.

at commit   as the model gave it in the forward that committed the token; tokens of one forward do not see each other
            (``dllm.record.final_commits``)
rescored    the same tokens one at a time, in the order of the trace and within a forward the most confident first, each
            given those before it: by the chain rule their sum is the log-likelihood of the text in that order

Their difference, summed over a forward, says whether tokens that were committed together fit together: 0 where they are
independent, negative where they contradict each other (the path and sequential information of arXiv 2511.21103).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dllm.common.errors import Refusal, UserError
from dllm.contract.setting import Sampling
from dllm.models.bundle import Model
from dllm.models.network.experts import at_least_float32
from dllm.record.final_commits import Commit, LogProbs, final_commits
from dllm.record.trace import Trace

MAX_CANVASES = 8  # canvases in a forward


@torch.inference_mode()
def rescored_logprobs(model: Model, trace: Trace, sampling: Sampling | None = None) -> LogProbs:
    """By position of the answer; each token takes a canvas. Ids that ``sampling`` bans have probability 0.

    Raises UserError for sampling with guidance, and for a model of noise, where a part of a text means nothing."""
    sampling = sampling or Sampling()
    if model.ids.mask is None:
        raise UserError(
            f"log-probabilities are re-scored on canvases of masks, and undecided positions of {model.name} show "
            "noise. Use those of the commits: result.commit_logprobs."
        )
    if sampling.guidance:
        raise Refusal("log-probabilities are re-scored with the model alone. Decode with {sampling.guidance=0}.")
    values: LogProbs = [None] * (trace.length - trace.start)
    order = final_commits(trace)
    for at in range(0, len(order), MAX_CANVASES):
        commits = order[at : at + MAX_CANVASES]
        canvases = [canvas_before(trace, order, at + row) for row in range(len(commits))]
        for commit, value in zip(commits, token_logprobs(model, trace, canvases, commits, sampling), strict=True):
            values[commit.position] = value
    return values


def canvas_before(trace: Trace, order: Sequence[Commit], number: int) -> list[int]:
    """The canvas with everything that was fixed before commit ``number``, and masks elsewhere."""
    canvas = list(trace.prompt)
    for record, candidate in trace.path()[: order[number].turn]:
        for position in record.filled[candidate]:
            canvas[trace.start + position] = trace.eos_id
    for commit in order[:number]:
        canvas[trace.start + commit.position] = commit.token
    return canvas


def token_logprobs(
    model: Model, trace: Trace, canvases: Sequence[Sequence[int]], commits: Sequence[Commit], sampling: Sampling
) -> list[float]:
    """Log-probability of each commit's token at its position on its canvas."""
    network = model.transformer
    tokens = torch.tensor(canvases, device=network.device)
    masked = tokens == model.ids.placeholder
    hidden = network.encode(tokens, None, masked, trace.start)
    start = torch.full((len(tokens),), trace.start, device=tokens.device)
    sources = model.config.sources(masked, start).tolist()
    columns = [row[trace.start + commit.position] for row, commit in zip(sources, commits, strict=True)]
    logits = network.head(hidden[range(len(columns)), columns])
    logits = logits.to(at_least_float32(logits.dtype))
    logits[:, model.ids.banned(sampling.suppress_mask, sampling.forbid_eos)] = -torch.inf
    early = [row for row, commit in enumerate(commits) if commit.position < sampling.min_tokens]
    if early:
        logits[torch.tensor(early)[:, None], torch.tensor(model.ids.ends)] = -torch.inf
    return logits.double().log_softmax(-1)[range(len(columns)), [commit.token for commit in commits]].tolist()
