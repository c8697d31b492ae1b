"""A head learns from what a tiny model says, and the engine loads what was written."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from paceline_engine.model.decoder import Decoder
from paceline_engine.model.families import load_config
from paceline_engine.model.head import Head
from paceline_engine.model.head_format import EAGLE, eagle_config, mtp_config, mtp_format
from paceline_engine.testing.tiny_model import TinyModel
from paceline_engine.train import job
from paceline_engine.train.job import HeadForm, TrainJob
from paceline_engine.train.recording import RecordPlan, record, recorded
from paceline_engine.train.trainer import TrainPlan

PLAN = RecordPlan(num_texts=4, num_pieces=2, max_tokens=24)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel(num_layers=1).write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data")
    write_data(model, out)
    return out


def write_data(model: Path, out: Path) -> list[str]:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    said: list[str] = []
    record(model, lambda text: tokenizer.encode(text).ids, out, PLAN, said.append)
    return said


@pytest.fixture
def plan(model: Path, data: Path, tmp_path: Path) -> TrainJob:
    return TrainJob(
        model=model,
        data=data,
        out=tmp_path / "head",
        work=tmp_path / "work",
        form=HeadForm.EAGLE,
        num_tokens=0,
        max_s=math.inf,
        plan=TrainPlan(epochs=3, batch_texts=4, warmup_steps=1, learning_rate=3e-3, held_out=0.2),
    )


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.slow
def test_recorded_states_are_those_that_make_the_recorded_tokens(model: Path, data: Path) -> None:
    lm_head = tensors_of(model)["lm_head.weight"]
    texts = recorded(data)
    assert len(texts) == PLAN.num_texts * PLAN.num_pieces
    for text in texts[::2]:  # the greedy ones
        first = text.num_prompt - 1
        guessed = (text.hidden[first:-1] @ lm_head.T).argmax(dim=1)
        right = (guessed == text.token_ids[first + 1 :]).float().mean()
        assert right > 0.9  # bfloat16 states turn some of the closest


@pytest.mark.slow
def test_a_recording_that_was_interrupted_goes_on(model: Path, tmp_path: Path) -> None:
    assert len(write_data(model, tmp_path)) == 2
    whole = recorded(tmp_path)
    (tmp_path / "piece-0001.safetensors").unlink()
    assert len(write_data(model, tmp_path)) == 1
    again = recorded(tmp_path)
    assert all(
        torch.equal(a.token_ids, b.token_ids) and torch.equal(a.hidden, b.hidden)
        for a, b in zip(whole, again, strict=True)
    )
    assert write_data(model, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("form", list(HeadForm))
def test_a_head_learns_and_the_engine_loads_it(plan: TrainJob, form: HeadForm) -> None:
    said: list[str] = []
    longer = replace(plan.plan, epochs=12)
    assert job.run(replace(plan, form=form, num_tokens=300, plan=longer), said.append)
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in said]
    assert losses[-1] < 0.8 * losses[0]
    load_target: Any = Decoder.load
    target = load_target(
        plan.model, load_config(plan.model), impl="torch", max_positions=64, progress=print
    )
    if form is HeadForm.EAGLE:
        folder, target_folder = plan.out, plan.model
        config, names = eagle_config(folder, target.config), EAGLE
    else:
        folder = target_folder = plan.out
        served = load_config(folder)
        assert served.num_mtp_layers == 1
        config, names = mtp_config(served), mtp_format(served)
        load_target(folder, served, impl="torch", max_positions=64, progress=print)
    head = Head.load(
        folder, config, names, target=target, target_folder=target_folder, max_positions=64
    )
    assert int((head.logits(torch.ones(1, 64)) > -torch.inf).sum()) == 300


@pytest.mark.slow
def test_a_training_that_was_interrupted_ends_where_a_whole_one_ends(
    plan: TrainJob, tmp_path: Path
) -> None:
    said: list[str] = []
    assert job.run(plan, said.append)
    pieces = replace(plan, out=tmp_path / "again", work=tmp_path / "again.work", max_s=0.0)
    runs = [job.run(pieces, said.append) for _ in range(plan.plan.epochs)]
    assert runs == [False, False, True]
    whole, again = tensors_of(plan.out), tensors_of(tmp_path / "again")
    assert set(whole) == set(again)
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_nothing_can_be_trained_from_an_empty_folder(plan: TrainJob, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="record some first"):
        job.run(replace(plan, data=tmp_path), print)
