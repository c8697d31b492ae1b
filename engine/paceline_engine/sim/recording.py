"""A recording of an engine (`GET /v1/paceline/recording`): its load, its settings, its steps.

Only what ran under the settings in force at the end is used: what came before a live change ran
under others, which the recording does not tell.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from paceline_crds.settings import EngineSettings
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.request_log import RECORDING_VERSION
from paceline_engine.core.step_features import StepFeatures
from paceline_engine.sim.kept_prefixes import kept_prefixes
from paceline_engine.sim.ledger import FineHistogram
from paceline_engine.sim.limits import limits_of
from paceline_engine.sim.report import spread, spread_of
from paceline_engine.sim.requests import SimRequest, continued, prompt

_DONE = {"stop", "length"}


class BadRecording(ValueError):
    """A file that is no recording, or one that holds too little; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One step that ran.

    Attributes:
        started_s, tokens_s: when it was planned, and when its tokens were there.
        cycle_ms: from its plan to the next one, the loop's own work included; to its own end if
            nothing was left to do.
    """

    sizes: StepFeatures
    started_s: float
    tokens_s: float
    cycle_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a recording holds. Times are seconds after the first arrival.

    Attributes:
        settings: in force at the end.
        limits: of the engine.
        requests: in order of arrival, as a simulator takes them.
        steps: oldest first; a failed step is none.
        first_tokens_s, ends_s: after the arrival, of requests that got a token and were not cut.
        num_preemptions: of the requests.
        last_arrival_s: of its newest request, on the engine's own clock: where a later recording of
            the same engine goes on.
    """

    model: str
    settings: EngineSettings
    limits: EngineLimits
    requests: tuple[SimRequest, ...]
    steps: tuple[RecordedStep, ...]
    first_tokens_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    num_preemptions: int
    last_arrival_s: float


def load(file: Path) -> Recording:
    """Read a downloaded recording.

    Raises:
        BadRecording: it is none, or nothing in it ran under the settings in force at its end.
    """
    try:
        return read(json.loads(file.read_text(encoding="utf-8")))
    except BadRecording:
        raise
    except (OSError, RecursionError, ValueError) as error:
        raise BadRecording(f"{file} must be a recording, got {error}") from error


def read(body: Mapping[str, Any], *, after_s: float = float("-inf")) -> Recording:
    """Make sense of a recording's body.

    Args:
        body: the JSON object.
        after_s: leave out what arrived or was planned until then, on the engine's clock.

    Raises:
        BadRecording: see `load`.
    """
    try:
        if body["version"] != RECORDING_VERSION:
            raise BadRecording(
                f"the recording has version {body['version']}, this release reads "
                f"{RECORDING_VERSION}; record it with the same release"
            )
        limits = body["limits"]
        settings = EngineSettings.model_validate(
            body["settings"]
            | {"numKvBlocks": limits["numBlocks"], "maxModelLen": limits["maxModelLen"]}
        )
        generation = body["generation"]
        all_steps = _rows(body["steps"])
        earlier = [row["plannedS"] for row in all_steps if row["generation"] != generation]
        # Who came before the last step under other settings may have begun under them.
        after_s = max([after_s, *earlier[-1:]])
        steps = [row for row in all_steps if row["plannedS"] > after_s]
        rows = _requests_after(after_s, _rows(body["requests"]), generation)
        return _recording(body["model"], settings, steps, rows)
    except BadRecording:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise BadRecording(
            "a recording must be what GET /v1/paceline/recording answers, got something else: "
            f"{error!r}"
        ) from error


def _recording(
    model: str,
    settings: EngineSettings,
    steps: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
) -> Recording:
    if not rows:
        raise BadRecording("no request ended under the settings in force; record a longer run")
    _check_lengths(rows, settings.max_model_len)
    start_s = rows[0]["arrivalS"]
    served = [row for row in rows if row["firstTokenS"] is not None and row["reason"] in _DONE]
    return Recording(
        model=model,
        settings=settings,
        limits=limits_of(settings),
        requests=tuple(_requests(rows, start_s)),
        steps=tuple(_steps(steps, start_s)),
        first_tokens_s=tuple(row["firstTokenS"] - row["arrivalS"] for row in served),
        ends_s=tuple(row["endS"] - row["arrivalS"] for row in served),
        num_preemptions=sum(row["numPreemptions"] for row in rows),
        last_arrival_s=rows[-1]["arrivalS"],
    )


def _check_lengths(rows: Sequence[Mapping[str, Any]], max_model_len: int | None) -> None:
    """Prompts are rebuilt token by token: a length that no engine takes must not fill the memory.

    Raises:
        BadRecording: naming the column.
    """
    most = max_model_len or 0
    for row in rows:
        for name, least in (
            *(("numPromptTokens", 1), ("numPrefixTokens", 0)),
            *(("numOutputTokens", 0), ("maxTokens", 0)),
        ):
            if not least <= row[name] <= most:
                raise BadRecording(
                    f"{name} of a recorded request must be {least} to maxModelLen ({most}), got "
                    f"{row[name]!r}"
                )


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    names = list(columns)
    try:
        return [
            dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)
        ]
    except ValueError as error:
        raise BadRecording(f"the columns of a recording must have one length: {error}") from error


def _requests_after(
    after_s: float, rows: list[dict[str, Any]], generation: int
) -> list[dict[str, Any]]:
    """Requests that began later and ended under this generation, and what they share."""
    places = [
        index
        for index, row in enumerate(rows)
        if row["generation"] == generation and row["arrivalS"] > after_s
    ]
    shared = kept_prefixes(
        [row["prefixOf"] for row in rows], [row["numPrefixTokens"] for row in rows], places
    )
    return [
        rows[index] | {"prefixOf": owner, "numPrefixTokens": count}
        for index, (owner, count) in zip(places, shared, strict=True)
    ]


def _requests(rows: Sequence[Mapping[str, Any]], start_s: float) -> Iterator[SimRequest]:
    done = [row["numOutputTokens"] for row in rows if row["reason"] in _DONE]
    usual = max(1, round(median(done))) if done else 1
    made: list[SimRequest] = []
    for number, row in enumerate(rows):
        owner = row["prefixOf"]
        prefix = continued(made[owner], row["numPrefixTokens"]) if owner >= 0 else ()
        # Who never got a token tells nothing of its length: it would have been like the others.
        num_output = row["numOutputTokens"] or min(usual, row["maxTokens"])
        made.append(
            SimRequest(
                arrival_s=row["arrivalS"] - start_s,
                prompt_token_ids=prompt(number, row["numPromptTokens"], prefix),
                num_output_tokens=num_output,
                max_tokens=row["maxTokens"],
                priority=row["priority"],
                tenant=row["tenant"],
            )
        )
    yield from made


def _steps(rows: Sequence[Mapping[str, Any]], start_s: float) -> Iterator[RecordedStep]:
    for row, after in itertools.zip_longest(rows, rows[1:]):
        if row["error"]:
            continue
        began_s = _began_s(row)
        own_ms = (row["appliedS"] - began_s) * 1e3 + row["applyMs"]
        goes_on = after is not None and row["numRunning"] + row["numWaiting"] > 0
        if goes_on and after["stepId"] == row["stepId"] + 1:
            own_ms = (_began_s(after) - began_s) * 1e3
        yield RecordedStep(
            sizes=StepFeatures(
                num_rows=row["numRows"],
                num_prefill_tokens=row["numPrefillTokens"],
                num_decode_tokens=row["numDecodeTokens"] + row["numDraftTokens"],
                kv_tokens_read=row["kvTokensRead"],
                attention_pairs=row["attentionPairs"],
                num_sampled=row["numSampled"],
            ),
            started_s=began_s - start_s,
            tokens_s=row["appliedS"] - start_s,
            cycle_ms=max(own_ms, 1e-3),
        )


def _began_s(row: Mapping[str, Any]) -> float:
    """When a step had the engine to itself: one that was planned during another waited for that."""
    began_s: float = row["plannedS"] + row.get("queuedMs", 0.0) / 1e3
    return began_s


def recorded_row(recording: Recording) -> dict[str, Any]:
    """The figures of the recorded run itself, in the form of `report.row_of`.

    Gaps between tokens are taken from the steps: a decode waited since the step before.
    """
    gaps = FineHistogram()
    for before, step in itertools.pairwise(recording.steps):
        num_decodes = step.sizes.num_decode_tokens
        if num_decodes:
            gaps.add(step.tokens_s - before.tokens_s, num_decodes)
    output_tokens = sum(asked.num_output_tokens for asked in recording.requests)
    ends = [step.tokens_s for step in recording.steps]
    duration_s = max(max(ends, default=0.0), 1e-9)
    return {
        "run": "recorded",
        "requests": len(recording.requests),
        "completed": len(recording.first_tokens_s),
        "duration_s": round(duration_s, 3),
        "requests_per_s": round(len(recording.first_tokens_s) / duration_s, 3),
        "output_tokens_per_s": round(output_tokens / duration_s, 2),
        "ttft_ms": spread(recording.first_tokens_s),
        "itl_ms": spread_of(gaps),
        "e2e_ms": spread(recording.ends_s),
        "steps": len(recording.steps),
        "preemptions": recording.num_preemptions,
    }
