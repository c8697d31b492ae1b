"""Log-probabilities of the model's own distribution: before penalties, masks and temperature."""

import torch
from torch import Tensor

from paceline_engine.core.arrays import Int64
from paceline_engine.core.plan import TokenLogprobs


def logprobs_of(logits: Tensor, tokens: Int64, counts: Int64) -> list[TokenLogprobs]:
    """One entry for each of [n, vocab] logits, its token and its count of best ones."""
    norm = logits.logsumexp(dim=-1, keepdim=True)
    own = logits.gather(1, torch.from_numpy(tokens).unsqueeze(1))
    ranks = ((logits > own).sum(dim=-1) + 1).tolist()
    own_logprobs = (own - norm).squeeze(1).tolist()
    width = min(int(counts.max()), logits.shape[1])
    best, ids = logits.topk(width, dim=-1)
    best_logprobs = (best - norm).tolist()
    return [
        TokenLogprobs(
            token_id=token,
            logprob=own_logprobs[row],
            rank=ranks[row],
            top_ids=tuple(top_ids[:count]),
            top_logprobs=tuple(best_logprobs[row][:count]),
        )
        for row, (token, count, top_ids) in enumerate(
            zip(tokens.tolist(), counts.tolist(), ids.tolist(), strict=True)
        )
    ]
