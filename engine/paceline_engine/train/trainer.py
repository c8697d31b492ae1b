"""Training of a draft head on recorded texts.

The head learns the target's next state (a smooth distance) and, weighing more, the distribution
that the target makes of it (Kullback-Leibler divergence). Half of the loss is of a second pass that
reads the states of the first instead of the target's, since behind its first guess that is what a
head reads. Sources: EAGLE, arXiv:2401.15077, section 4.2; HASS, arXiv:2408.15766.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from paceline_engine.train.module import TrainableHead
from paceline_engine.train.recording import RecordedText


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """How long and how fast.

    Attributes:
        batch_texts: texts of a step.
        learning_rate: at its highest; it rises over the first steps and falls along a cosine.
        state_weight: of the distance of states beside the divergence.
        held_out: share of the texts, the last ones, that only judge.
    """

    epochs: int = 6
    batch_texts: int = 8
    learning_rate: float = 1e-3
    warmup_steps: int = 30
    state_weight: float = 0.2
    held_out: float = 0.1
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Of texts that were not trained on.

    Attributes:
        first, second: share of positions whose likeliest token is the target's, read from the
            target's states and from guessed ones.
        in_vocabulary: share whose likeliest token of the target is one that the head knows.
    """

    first: float
    second: float
    in_vocabulary: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """The target's ends, frozen.

    Attributes:
        embedding: [vocab, hidden] float32.
        lm_head: [vocab, hidden] float32.
        token_ids: [draft vocabulary] int64, what the head may guess.
    """

    embedding: Tensor
    lm_head: Tensor
    token_ids: Tensor


class Trainer:
    """One head and its optimizer. Mutable; `save` and `resume` carry it over an interruption."""

    def __init__(
        self,
        head: TrainableHead,
        texts: Sequence[RecordedText],
        projection: Projection,
        plan: TrainPlan,
    ) -> None:
        held_out = max(1, round(plan.held_out * len(texts)))
        self._training, self._held_out = texts[:-held_out], texts[-held_out:]
        if not self._training:
            raise ValueError(f"training needs two texts or more, got {len(texts)}")
        self.head, self._plan, self._ends = head, plan, projection
        self._draft_head = projection.lm_head[projection.token_ids]
        self._steps_per_epoch = -(-len(self._training) // plan.batch_texts)
        self._optimizer = torch.optim.AdamW(head.parameters(), lr=0.0, betas=(0.9, 0.95))
        self.epoch = 0
        self._step = 0

    @property
    def is_done(self) -> bool:
        """All epochs were trained."""
        return self.epoch >= self._plan.epochs

    def train(self, said: Callable[[str], None], max_s: float = math.inf) -> None:
        """Train until done, or to the end of the epoch in which `max_s` seconds have passed."""
        started = time.perf_counter()
        while not self.is_done:
            losses = [self._train_on(batch) for batch in self._shuffled()]
            self.epoch += 1
            judged = self.judge()
            said(
                f"epoch {self.epoch}: loss {sum(losses) / len(losses):.3f}, held out: "
                f"{judged.first:.3f} of first and {judged.second:.3f} of second guesses, "
                f"{judged.in_vocabulary:.3f} in the vocabulary, "
                f"{time.perf_counter() - started:.0f} s"
            )
            if time.perf_counter() - started >= max_s:
                return

    @torch.no_grad()
    def judge(self) -> Judged:
        """Guesses on texts that were not trained on."""
        hits = [0, 0, 0, 0]
        known = torch.zeros(len(self._ends.lm_head), dtype=torch.bool)
        known[self._ends.token_ids] = True
        for start in range(0, len(self._held_out), self._plan.batch_texts):
            texts = self._held_out[start : start + self._plan.batch_texts]
            embedded, hidden, wanted, counts = self._tensors(texts)
            right = (wanted @ self._ends.lm_head.T).argmax(-1)
            states = self.head(embedded, hidden)
            again = self.head(embedded, _shifted(hidden, states))
            for place, guessed in enumerate((states, again)):
                logits = self.head.projected(guessed[counts]) @ self._draft_head.T
                guess = self._ends.token_ids[logits.argmax(-1)]
                hits[place] += int((guess == right).sum())
            hits[2] += int(known[right].sum())
            hits[3] += len(right)
        first, second, inside = (hit / hits[3] for hit in hits[:3])
        return Judged(first=first, second=second, in_vocabulary=inside)

    def save(self, path: Path) -> None:
        """Write where training stands, whole or not at all."""
        partial = path.with_suffix(".partial")
        torch.save(
            {
                "head": self.head.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "epoch": self.epoch,
                "step": self._step,
            },
            partial,
        )
        partial.rename(path)

    def resume(self, path: Path) -> None:
        """Go on from where `save` left it."""
        state = torch.load(path, weights_only=True)
        self.head.load_state_dict(state["head"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.epoch, self._step = state["epoch"], state["step"]

    def _shuffled(self) -> list[list[RecordedText]]:
        draw = torch.Generator().manual_seed(self._plan.seed + self.epoch)
        order = torch.randperm(len(self._training), generator=draw).tolist()
        size = self._plan.batch_texts
        return [
            [self._training[at] for at in order[start : start + size]]
            for start in range(0, len(order), size)
        ]

    def _train_on(self, texts: Sequence[RecordedText]) -> float:
        embedded, hidden, wanted, counts = self._tensors(texts)
        right = torch.log_softmax(wanted @ self._draft_head.T, dim=-1)
        states = self.head(embedded, hidden)
        loss = self._loss(states[counts], wanted, right)
        again = self.head(embedded, _shifted(hidden, states))
        loss = (loss + self._loss(again[counts], wanted, right)) / 2
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self._optimizer.step()
        self._step += 1
        return float(loss.detach())

    def _loss(self, guessed: Tensor, wanted: Tensor, right: Tensor) -> Tensor:
        """Of states [n, hidden] at the positions that count."""
        states = self.head.projected(guessed)
        logits = torch.log_softmax(states @ self._draft_head.T, dim=-1)
        divergence = functional.kl_div(logits, right, reduction="batchmean", log_target=True)
        scale = wanted.std()
        distance = functional.smooth_l1_loss(states / scale, wanted / scale)
        return divergence + self._plan.state_weight * distance

    def _tensors(self, texts: Sequence[RecordedText]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Embeddings and states that the head reads, states wanted where `counts` is true, counts.

        A position counts from the prompt's last one on: nobody drafts before it.
        """
        tokens = pad_sequence([text.token_ids[1:] for text in texts], batch_first=True)
        hidden = pad_sequence([text.hidden[:-1] for text in texts], batch_first=True)
        after = pad_sequence([text.hidden[1:] for text in texts], batch_first=True)
        places = torch.arange(tokens.shape[1])
        first = torch.tensor([text.num_prompt - 1 for text in texts])[:, None]
        last = torch.tensor([len(text.token_ids) - 1 for text in texts])[:, None]
        counts = (places >= first) & (places < last)
        return self._ends.embedding[tokens], hidden, after[counts], counts

    def _learning_rate(self) -> float:
        plan, total = self._plan, self._plan.epochs * self._steps_per_epoch
        warm = min(1.0, (self._step + 1) / plan.warmup_steps)
        return plan.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * self._step / total))


def _shifted(hidden: Tensor, states: Tensor) -> Tensor:
    """What a head reads that goes on from its own guesses: the guess of the place before."""
    return torch.cat((hidden[:, :1], states[:, :-1]), dim=1)
