"""How far two sets of logits for the same tokens lie apart."""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

_SLICE_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Of other logits from those taken for right, over some positions.

    Attributes:
        mean_kl_nats, max_kl_nats: Kullback-Leibler divergence of a position's next-token
            distribution, KL(right || other); the mean and the worst position.
        max_abs_logit: largest difference of a logit.
        top1_agreement: share of positions whose likeliest token is the same.
    """

    mean_kl_nats: float
    max_kl_nats: float
    max_abs_logit: float
    top1_agreement: float

    def by_measure(self) -> dict[str, float]:
        """For the log, the admin API and the metrics."""
        return asdict(self)


def measure_divergence(right: Tensor, other: Tensor) -> Divergence:
    """Compare logits, [positions, vocab] float32 each; slices keep the copies small."""
    kl = [
        _kl(right[start : start + _SLICE_ROWS], other[start : start + _SLICE_ROWS])
        for start in range(0, len(right), _SLICE_ROWS)
    ]
    differences = [float((one - two).abs().max()) for one, two in zip(right, other, strict=True)]
    by_position = torch.cat(kl)
    return Divergence(
        mean_kl_nats=float(by_position.mean()),
        max_kl_nats=float(by_position.max()),
        max_abs_logit=max(differences),
        top1_agreement=float((right.argmax(-1) == other.argmax(-1)).float().mean()),
    )


def _kl(right: Tensor, other: Tensor) -> Tensor:
    """[positions] float64, never below 0."""
    p, q = (torch.log_softmax(logits.double(), dim=-1) for logits in (right, other))
    return (p.exp() * (p - q)).sum(dim=-1).clamp(min=0.0)
