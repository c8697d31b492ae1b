"""From recorded texts to a folder with a head: what `paceline head train` does."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch
from torch import Tensor

from paceline_engine.model.config import ModelConfig
from paceline_engine.model.families import config_of, load_config
from paceline_engine.model.head_format import EAGLE, HeadFormat, mtp_config, mtp_format
from paceline_engine.model.weights import CPU, Checkpoint
from paceline_engine.train.folder import eagle_raw_config, write_eagle, write_mtp
from paceline_engine.train.module import TrainableHead
from paceline_engine.train.recording import RecordedText, recorded
from paceline_engine.train.trainer import Projection, Trainer, TrainPlan

STATE = "training.pt"


class HeadForm(StrEnum):
    """Which head is trained."""

    EAGLE = "Eagle"
    MTP = "Mtp"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    """What is trained from what.

    Attributes:
        model: folder of the target.
        data: folder of the recorded pieces.
        out: folder that is written; MTP writes the whole model.
        work: folder of the state that an interrupted training goes on from.
        num_tokens: of the head's vocabulary, 0: all of the target's.
        max_s: training stops behind the epoch in which they passed.
    """

    model: Path
    data: Path
    out: Path
    work: Path
    form: HeadForm
    num_tokens: int
    max_s: float
    plan: TrainPlan


def run(job: TrainJob, said: Callable[[str], None]) -> bool:
    """Train, or go on training, and write the head.

    Returns:
        Whether training is done; if not, the same job goes on with it.

    Raises:
        ValueError, FileNotFoundError: nothing can be trained from that.
        StartFailed: UnsupportedModel: the target.
    """
    texts = recorded(job.data)
    target = load_config(job.model)
    config, form = _shape_of(job, target)
    longest = max(len(text.token_ids) for text in texts)
    head = TrainableHead(config, form, longest, job.plan.seed)
    projection = _ends(job.model, target, texts, job.num_tokens)
    head.start_from(_first_guess(form, texts[0].hidden))
    trainer = Trainer(head, texts, projection, job.plan)
    job.work.mkdir(parents=True, exist_ok=True)
    state = job.work / STATE
    if state.is_file():
        trainer.resume(state)
        said(f"goes on behind epoch {trainer.epoch}")
    trainer.train(said, job.max_s)
    trainer.save(state)
    write = write_eagle if job.form is HeadForm.EAGLE else write_mtp
    write(job.out, head, projection.token_ids, job.model)
    return trainer.is_done


def draft_vocabulary(texts: list[RecordedText], vocab_size: int, num_tokens: int) -> Tensor:
    """Ids of the tokens seen most often, and of the lowest ones: the first merges of a tokenizer.

    Returns:
        [num_tokens] int64, ascending.
    """
    seen = torch.bincount(torch.cat([text.token_ids for text in texts]), minlength=vocab_size)
    order = torch.argsort(seen, descending=True, stable=True)
    return order[:num_tokens].sort().values


def _shape_of(job: TrainJob, target: ModelConfig) -> tuple[ModelConfig, HeadFormat]:
    if job.form is HeadForm.EAGLE:
        return config_of(eagle_raw_config(job.model), job.model), EAGLE
    if target.num_mtp_layers:
        raise ValueError(f"{job.model} has an MTP layer already")
    return mtp_config(target), mtp_format(target)


def _ends(
    model: Path, target: ModelConfig, texts: list[RecordedText], num_tokens: int
) -> Projection:
    checkpoint = Checkpoint(model, CPU)
    sizes = (target.vocab_size, target.hidden_size)
    embedding = checkpoint.take("model.embed_tokens.weight", *sizes).float()
    tied = target.tie_word_embeddings
    lm_head = embedding if tied else checkpoint.take("lm_head.weight", *sizes).float()
    count = min(num_tokens or target.vocab_size, target.vocab_size)
    token_ids = draft_vocabulary(texts, target.vocab_size, count)
    return Projection(embedding=embedding, lm_head=lm_head, token_ids=token_ids)


def _first_guess(form: HeadFormat, states: Tensor) -> dict[str, Tensor]:
    """Before it has learned anything, the head guesses that the state stays as it is."""
    hidden = states.shape[1]
    kept, nothing = torch.eye(hidden), torch.zeros(hidden, hidden)
    both = (kept, nothing) if form.is_hidden_first else (nothing, kept)
    guess = {f"{form.fuse}weight": torch.cat(both, dim=1)}
    if form.out_norm is not None:
        guess[form.out_norm] = states.square().mean().sqrt().expand(hidden)
    return guess
