"""`paceline bench serve`: workloads against a running OpenAI-compatible server."""

import asyncio
import json
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline_crds import routes
from paceline_engine.bench import client, report, workloads
from paceline_engine.bench.client import Api, Load, Mode, Target
from paceline_engine.bench.workloads import Vocabulary, Workload
from paceline_engine.serve.http_stream import AnswerCut, ResponseStream

_LIST_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What is run, in which order.

    Attributes:
        repeats: rounds over all workloads; each gives its own rows.
        limit: only the first so many requests of each workload, 0 = all.
        num_warm_ups: short requests before the first workload.
    """

    target: Target
    load: Load
    names: Sequence[str]
    vocabulary: Vocabulary
    seed: int = 1234
    steady_tokens: int = 0
    limit: int = 0
    repeats: int = 1
    num_warm_ups: int = 2


class BenchFailed(Exception):
    """The run cannot give figures; the message says why."""


def workload_of(plan: BenchPlan, name: str) -> Workload:
    """One workload of a plan, cut and stretched as the plan says."""
    workload = workloads.make(name, plan.vocabulary, seed=plan.seed)
    if plan.steady_tokens:
        workload = workloads.with_steady_tokens(workload, plan.steady_tokens)
    if plan.limit:
        workload = Workload(
            name=workload.name, seed=workload.seed, items=workload.items[: plan.limit]
        )
    return workload


def check(plan: BenchPlan) -> None:
    """Refuse what cannot be measured.

    Raises:
        BenchFailed: text is asked for but the vocabulary has none, or a figure is out of range.
    """
    wants_text = plan.target.api is Api.CHAT or plan.target.prompts_as_text
    if wants_text and not plan.vocabulary.words[0][0]:
        raise BenchFailed(
            "prompts as text (and the chat API) need a tokenizer; pass --tokenizer FOLDER"
        )
    if plan.load.mode is Mode.POISSON and not plan.load.rate > 0:
        raise BenchFailed(f"--rate must be > 0 requests a second, got {plan.load.rate:g}")
    if plan.load.mode is Mode.CLOSED and plan.load.concurrency < 1:
        raise BenchFailed(f"--concurrency must be >= 1, got {plan.load.concurrency}")


def first_model(base_url: str, api_key: str = "") -> str:
    """The name of the first model that the server lists.

    Raises:
        BenchFailed: it lists none, or does not answer.
    """
    base = base_url.rstrip("/").removesuffix(routes.OPENAI_BASE)
    headers = [(b"authorization", b"Bearer " + api_key.encode())] if api_key else []

    async def ask() -> tuple[int, bytes]:
        async with asyncio.timeout(_LIST_TIMEOUT_S):
            stream = await ResponseStream.open("GET", base + routes.MODELS, headers=headers)
            await stream.head()
            return stream.status, await stream.body()

    try:
        status, body = asyncio.run(ask())
        name: str = json.loads(body)["data"][0]["id"] if status == 200 else ""
    except (OSError, AnswerCut, ValueError, LookupError, TypeError) as error:
        raise BenchFailed(
            f"{base}{routes.MODELS} must list a model, got {error or repr(error)}; check --base-url"
        ) from error
    if not name:
        text = body.decode("utf-8", "replace")[:200]
        raise BenchFailed(f"{base}{routes.MODELS} must list a model, got HTTP {status}: {text}")
    return name


async def _rows(plan: BenchPlan, emit: Callable[[dict[str, Any]], None]) -> None:
    made = [workload_of(plan, name) for name in plan.names]
    if plan.num_warm_ups:
        error = await client.warm_up(made[0], plan.target, plan.num_warm_ups)
        if error:
            raise BenchFailed(
                f"{plan.target.url} must answer a short request, got: {error}; check --base-url, "
                "--model and --api-key-file"
            )
    for _ in range(plan.repeats):
        for workload in made:
            before = resource.getrusage(resource.RUSAGE_SELF)
            answers = await client.drive(workload, plan.target, plan.load)
            after = resource.getrusage(resource.RUSAGE_SELF)
            cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            emit(report.row_of(workload, plan.load, answers, client_cpu_s=cpu_s))


def run(plan: BenchPlan, write: Callable[[str], None], *, as_json: bool) -> int:
    """Run the plan; JSON rows are written as they come, the table at the end.

    Returns:
        Exit code: 1 if any request failed.

    Raises:
        BenchFailed: see `check`; also when the server does not answer at all.
    """
    check(plan)
    rows: list[dict[str, Any]] = []

    def emit(row: dict[str, Any]) -> None:
        rows.append(row)
        if as_json:
            write(json.dumps(row))

    asyncio.run(_rows(plan, emit))
    if not as_json:
        write(report.table(rows))
        for row in rows:
            if row["errors"]:
                write(f"{row['workload']}: {row['errors']} failed: {row['error_sample'][0]}")
    return 1 if any(row["errors"] for row in rows) else 0
