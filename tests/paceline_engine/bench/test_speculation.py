"""What drafts give, on a tiny model: every cell has its figures, and the duration comes first."""

import json
import random
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from paceline_crds.settings import EngineSettings, SpeculativeMethod
from paceline_engine.bench import prompts, speculation
from paceline_engine.bench.speculation import Plan, RequestMaker
from paceline_engine.testing.tiny_model import TinyModel

PLAN = Plan(
    proposers=[SpeculativeMethod.NGRAM, SpeculativeMethod.SUFFIX],
    batches=(1, 3),
    max_tokens=16,
    num_drafts=3,
    half_width=1e-9,
    min_rounds=2,
    max_rounds=3,
)


def encode(text: str) -> list[int]:
    return [3 + ord(char) % 400 for char in text]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = TinyModel().write(tmp_path_factory.mktemp("drafts"))
    settings = EngineSettings(dtype="Float32")
    lines: list[str] = []
    assert speculation.show(folder, settings, encode, PLAN, lines.append, as_json=True) == 0
    return [json.loads(line) for line in lines]


@pytest.mark.slow
def test_the_duration_is_told_before_anything_is_measured(rows: list[dict[str, Any]]) -> None:
    least, most = rows[0]["minutes"]
    assert rows[0] == {"kind": "plan", "cells": 12, "minutes": [least, most]}
    assert 0 <= least <= most


@pytest.mark.slow
def test_every_proposer_text_and_batch_has_a_row(rows: list[dict[str, Any]]) -> None:
    cells = [(row["proposer"], row["text"], row["batch"], row["mode"]) for row in rows[1:]]
    assert cells[:6] == [
        ("Ngram", text, batch, mode)
        for text in ("repetitive", "free")
        for batch, mode in ((1, "3 drafts"), (1, "adaptive"), (3, "adaptive"))
    ]
    assert [cell[0] for cell in cells[6:]] == ["Suffix"] * 6
    for row in rows[1:]:
        assert row["rounds"] == 3
        assert not row["is_sharp"]
        assert 0 < row["low"] <= row["speed_up"] <= row["high"]
        assert row["num_different"] == 0
        assert row["accepted"] <= row["drafted"]
        assert row["tokens_per_row"] >= 1


@pytest.mark.slow
def test_a_fixed_number_is_always_asked_for(rows: list[dict[str, Any]]) -> None:
    fixed = [row for row in rows[1:] if row["mode"] == "3 drafts"]
    assert {(row["usual_drafts"], row["share_none"]) for row in fixed} == {(3, 0.0)}


def test_requests_never_come_twice_and_a_seed_gives_the_same_ones() -> None:
    def made() -> list[Any]:
        maker = RequestMaker(encode, 16, seed=3)
        return [maker.make(text, 6) for text in ("free", "repetitive", "free")]

    first = made()
    assert first == made()
    assert len({request.request_id for part in first for request in part}) == 18
    assert [part[0].params.temperature for part in first] == [0.8, 0.0, 0.8]
    assert first[0][0].prompt_token_ids != first[2][0].prompt_token_ids


def test_listings_repeat_themselves_and_questions_do_not() -> None:
    rng = random.Random(1)

    def repeated(text: str) -> float:
        runs = [text[at : at + 8] for at in range(len(text) - 8)]
        return 1 - len(set(runs)) / len(runs)

    listings = [repeated(text) for text in prompts.repetitive_prompts(rng, 40)]
    questions = [repeated(text) for text in prompts.free_prompts(rng, 40)]
    assert mean(listings) > 2 * mean(questions)


def test_a_table_marks_what_did_not_get_sharp_enough() -> None:
    row = speculation.Row(
        proposer="Ngram", text="free", batch=8, mode="adaptive", speed_up=0.991, low=0.95,
        high=1.03, rounds=30, is_sharp=False, drafted=0, accepted=0, acceptance=None,
        tokens_per_row=1.0, usual_drafts=0, share_none=1.0, num_different=0, took_s=60.0,
    )  # fmt: skip
    text = speculation.line(row)
    assert "0.991  [0.950 1.030] !" in text
    assert "CHANGED" not in text
