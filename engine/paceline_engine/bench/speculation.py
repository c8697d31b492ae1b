"""`paceline bench speculation`: what drafts give and cost, against the same engine without them.

Two engines take turns (`paired_engines`), one without speculation. Each round brings requests never
seen before, so that past outputs help no more than they would; rounds go on until the ratio of the
times is known well enough. The number of drafts is fixed for the acceptance and for what drafts are
worth alone, adaptive for what they are worth in a server.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from paceline_crds.settings import EngineSettings, SpeculativeMethod
from paceline_engine.bench import prompts
from paceline_engine.bench.paired_engines import Arm, Interval, num_different, run_round
from paceline_engine.core.request import Request, SamplingParams
from paceline_engine.run.runner import Runner

Encode = Callable[[str], Sequence[int]]
Write = Callable[[str], None]
TEXTS = ("repetitive", "free")
"""Repetitive: listings, greedy. Free: answers to questions, drawn at temperature 0.8."""
_FREE_TEMPERATURE = 0.8
_BLOCK_SIZE = 16
_MAX_PROMPT_TOKENS = 160
_TRIAL_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured.

    Attributes:
        proposers: whose drafts.
        batches: requests at a time, with an adaptive number of drafts.
        fixed_batches: the same with `num_drafts` always.
        texts: of `TEXTS`.
        num_drafts: most draft tokens of a request in a step.
        max_tokens: of each answer.
        half_width: of the ratio's interval, at which rounds end.
        min_rounds, max_rounds: at least and at most so many, behind one that does not count.
        draft_model: of proposer DraftModel or Eagle.
    """

    proposers: Sequence[SpeculativeMethod]
    batches: Sequence[int] = (1, 8, 32, 64)
    fixed_batches: Sequence[int] = (1,)
    texts: Sequence[str] = TEXTS
    num_drafts: int = 5
    max_tokens: int = 48
    half_width: float = 0.02
    min_rounds: int = 6
    max_rounds: int = 30
    seed: int = 1
    draft_model: str | None = None

    def kinds(self) -> list[bool]:
        """Whether engines with an adaptive and with a fixed number of drafts are needed."""
        return [
            kind for kind, sizes in ((False, self.fixed_batches), (True, self.batches)) if sizes
        ]

    def cells(self) -> Iterator[tuple[str, int, bool]]:
        """(text, batch, whether the number of drafts is adaptive) of one proposer."""
        for text in self.texts:
            yield from ((text, batch, False) for batch in self.fixed_batches)
            yield from ((text, batch, True) for batch in self.batches)


class RequestMaker:
    """Requests that are never the same twice, and the same in every run of a seed."""

    def __init__(self, encode: Encode, max_tokens: int, seed: int) -> None:
        self._encode, self._max_tokens = encode, max_tokens
        self._rng = random.Random(seed)  # noqa: S311 - a workload, not a secret
        self._number = 0

    def make(self, text: str, count: int, max_tokens: int = 0) -> list[Request]:
        """So many requests for one kind of text, which end after so many tokens and not before."""
        make = prompts.free_prompts if text == "free" else prompts.repetitive_prompts
        return [
            self._request(prompt, text, max_tokens or self._max_tokens)
            for prompt in make(self._rng, count)
        ]

    def _request(self, prompt: str, text: str, max_tokens: int) -> Request:
        self._number += 1
        return Request(
            request_id=self._number,
            external_id=str(self._number),
            prompt_token_ids=tuple(self._encode(prompt)[-_MAX_PROMPT_TOKENS:]),
            params=SamplingParams(
                temperature=_FREE_TEMPERATURE if text == "free" else 0.0,
                seed=self._number,
                max_tokens=max_tokens,
                ignore_eos=True,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One cell: a proposer on a kind of text, so many requests at a time.

    Attributes:
        mode: fixed or adaptive number of drafts.
        speed_up, low, high: time without drafts over time with them; 95% interval.
        is_sharp: its half-width was reached within the rounds.
        drafted, accepted: draft tokens of the rounds that count.
        tokens_per_row: that a row and step yielded, 1 without drafts.
        usual_drafts: median of what a full step asked for each row; share_none: of steps that
            asked for none.
        num_different: answers that drafts changed; 0 is promised in float32.
        took_s: by the wall.
    """

    proposer: str
    text: str
    batch: int
    mode: str
    speed_up: float
    low: float
    high: float
    rounds: int
    is_sharp: bool
    drafted: int
    accepted: int
    acceptance: float | None
    tokens_per_row: float
    usual_drafts: float
    share_none: float
    num_different: int
    took_s: float


class Bench:
    """Loads the engines and runs the cells of a plan. Mutable."""

    def __init__(self, folder: Path, settings: EngineSettings, encode: Encode, plan: Plan) -> None:
        self._folder, self._plan = folder, plan
        most = max((*plan.batches, *plan.fixed_batches))
        tokens = _MAX_PROMPT_TOKENS + plan.max_tokens + plan.num_drafts + 1
        self._settings = settings.model_copy(
            update={
                "block_size": _BLOCK_SIZE,
                "num_kv_blocks": 16 + most * -(-tokens // _BLOCK_SIZE),
                "max_num_seqs": most,
                "max_num_batched_tokens": 8192,
                "max_model_len": tokens,
                "prefix_caching": False,
            }
        )
        self._requests = RequestMaker(encode, plan.max_tokens, plan.seed)
        self._plain = self._arm(SpeculativeMethod.NONE, is_adaptive=False)

    def _arm(self, method: SpeculativeMethod, *, is_adaptive: bool) -> Arm:
        num = 0 if method is SpeculativeMethod.NONE else self._plan.num_drafts
        is_model = method in {SpeculativeMethod.DRAFT_MODEL, SpeculativeMethod.EAGLE}
        settings = self._settings.model_copy(
            update={
                "speculative_method": method,
                "speculative_model": self._plan.draft_model if is_model else None,
                "speculative_num_tokens": num,
                "speculative_adaptive": is_adaptive,
            }
        )
        runner = Runner.load(self._folder, settings, _quiet, engine_seed=1)
        return Arm(runner, runner.settings)

    def round_s(self) -> dict[int, float]:
        """About how long a round of each batch takes, by a few tokens without drafts."""
        found = {}
        sizes = {*self._plan.batches, *self._plan.fixed_batches}
        for batch in sorted(sizes):
            started = time.perf_counter()
            self._plain.run(self._requests.make("repetitive", batch, _TRIAL_TOKENS))
            whole = time.perf_counter() - started
            step_s = self._plain.spent_s / (_TRIAL_TOKENS - 1)
            found[batch] = 2 * (whole + (self._plan.max_tokens - _TRIAL_TOKENS) * step_s)
        return found

    def rows(self) -> Iterator[Row]:
        """All cells, each as soon as it is known."""
        for method in self._plan.proposers:
            arms = {kind: self._arm(method, is_adaptive=kind) for kind in self._plan.kinds()}
            for text, batch, is_adaptive in self._plan.cells():
                yield self._row(arms[is_adaptive], method, text, batch, is_adaptive=is_adaptive)

    def _row(
        self, arm: Arm, method: SpeculativeMethod, text: str, batch: int, *, is_adaptive: bool
    ) -> Row:
        plan, started = self._plan, time.perf_counter()
        ratios: list[float] = []
        total: Counter[str] = Counter()
        asked: list[int] = []
        run_round(self._plain, arm, self._requests.make(text, batch))
        while True:
            ratios.append(run_round(self._plain, arm, self._requests.make(text, batch)))
            asked += arm.asked
            total["drafted"] += arm.num_drafted
            total["accepted"] += arm.num_accepted
            total["tokens"] += arm.num_decoded
            total["different"] += num_different(self._plain, arm)
            found = Interval.of(ratios)
            is_sharp = len(ratios) >= plan.min_rounds and found.half_width <= plan.half_width
            if is_sharp or len(ratios) == plan.max_rounds:
                break
        return Row(
            proposer=method.value,
            text=text,
            batch=batch,
            mode="adaptive" if is_adaptive else f"{plan.num_drafts} drafts",
            speed_up=round(found.ratio, 4),
            low=round(found.low, 4),
            high=round(found.high, 4),
            rounds=len(ratios),
            is_sharp=is_sharp,
            drafted=total["drafted"],
            accepted=total["accepted"],
            acceptance=round(total["accepted"] / total["drafted"], 3) if total["drafted"] else None,
            tokens_per_row=round(total["tokens"] / (total["tokens"] - total["accepted"]), 3),
            usual_drafts=median(asked) if asked else 0,
            share_none=round(asked.count(0) / len(asked), 3) if asked else 1.0,
            num_different=total["different"],
            took_s=round(time.perf_counter() - started, 1),
        )


def _quiet(_phase: str, _share: float) -> None:
    """Progress that nobody watches."""


def show(
    folder: Path,
    settings: EngineSettings,
    encode: Encode,
    plan: Plan,
    write: Write,
    *,
    as_json: bool,
) -> int:
    """Measure; say beforehand how long that takes, then a line for each cell.

    Returns:
        1 if drafts changed an answer, else 0.
    """
    bench = Bench(folder, settings, encode, plan)
    round_s = bench.round_s()
    cells = [batch for _, batch, _ in plan.cells()] * len(plan.proposers)
    least, most = (
        sum(round_s[batch] * (1 + rounds) for batch in cells) / 60
        for rounds in (plan.min_rounds, plan.max_rounds)
    )
    if as_json:
        write(
            json.dumps(
                {"kind": "plan", "cells": len(cells), "minutes": [round(least, 1), round(most, 1)]}
            )
        )
    else:
        write(
            f"{len(cells)} cells, {least:.0f} to {most:.0f} minutes: rounds of {plan.max_tokens} "
            f"tokens a request until the half-width is {100 * plan.half_width:g}%, at least "
            f"{plan.min_rounds} and at most {plan.max_rounds}"
        )
        write(HEAD)
    changed = 0
    for row in bench.rows():
        changed += row.num_different
        write(json.dumps({"kind": "cell", **asdict(row)}) if as_json else line(row))
    return 1 if changed else 0


HEAD = (
    f"{'proposer':11}{'text':11}{'batch':>5} {'mode':9}{'speed-up':>9}  {'95% interval':16}"
    f"{'rounds':>6}{'accepted':>9}{'tok/row':>8}{'asked':>6}{'none':>6}"
)


def line(row: Row) -> str:
    """A row of the table under `HEAD`."""
    interval = f"[{row.low:.3f} {row.high:.3f}]" + ("" if row.is_sharp else " !")
    accepted = "-" if row.acceptance is None else f"{100 * row.acceptance:.0f}%"
    return (
        f"{row.proposer:11}{row.text:11}{row.batch:5} {row.mode:9}{row.speed_up:9.3f}  "
        f"{interval:16}{row.rounds:6}{accepted:>9}{row.tokens_per_row:8.2f}{row.usual_drafts:6g}"
        f"{100 * row.share_none:5.0f}%"
        + (f"  CHANGED {row.num_different} answers" if row.num_different else "")
    )
