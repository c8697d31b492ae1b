"""Which implementation runs here: chosen by a short measurement, remembered per kind of CPU.

No constant says which kernel is faster: on one machine 16-bit weights multiplied in float32
registers win at every batch, on another matrix units do. The linear layers decide, since they are
nearly all of a step; each candidate multiplies the model's own shapes at three batch sizes.
"""

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from paceline_kernels import ops
from paceline_kernels.cpu import build, library

BATCHES = (1, 16, 256)
# A vocabulary projection of 49,152 outputs behaves like one of these many, and costs a tenth.
MAX_OUT_FEATURES = 4096
BUDGET_S = 0.02  # for one candidate at one shape and batch
FORMAT = 2  # of the remembered file


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An implementation with the format of its activations."""

    impl: str
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """As remembered and shown."""
        return f"{self.impl}/{str(self.dtype).removeprefix('torch.')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One shape at one batch.

    Attributes:
        microseconds: candidate's name -> shortest time of one product (the least disturbed one:
            medians on a busy machine compared the neighbours' load).
    """

    out_features: int
    in_features: int
    tokens: int
    microseconds: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """The choice and what it rests on.

    Attributes:
        impl, dtype: the candidate whose times have the lowest geometric mean.
        reason: for logs: why.
        cpu_unavailable: why impl "cpu" was no candidate, or None.
        rows: every measurement.
    """

    impl: str
    dtype: torch.dtype
    reason: str
    cpu_unavailable: str | None
    rows: tuple[Measured, ...]


def candidates(dtypes: Sequence[torch.dtype]) -> tuple[Candidate, ...]:
    """What can run here with activations in one of `dtypes`."""
    found = [Candidate(impl="torch", dtype=dtype) for dtype in dtypes]
    if torch.float32 in dtypes and ops.cpu_unavailable_reason() is None:
        found.insert(0, Candidate(impl="cpu", dtype=torch.float32))
    return tuple(found)


def kernel_table(
    shapes: Sequence[tuple[int, int]],
    *,
    weight_dtype: torch.dtype,
    dtypes: Sequence[torch.dtype] = (torch.float32,),
    folder: Path | None = None,
) -> KernelTable:
    """Choose, from memory when this kind of CPU was measured before.

    Args:
        shapes: the model's linear layers, (out_features, in_features).
        weight_dtype: the checkpoint's format.
        dtypes: activation formats that the settings allow; float32 for exact results, bfloat16
            besides where its rounding is wanted.
        folder: where to remember; default: the cache folder.
    """
    tried = candidates(dtypes)
    unavailable = ops.cpu_unavailable_reason()
    wanted = sorted({(min(out, MAX_OUT_FEATURES), size) for out, size in shapes})
    path = _path(folder or build.cache_folder(), tried, wanted, weight_dtype)
    rows = _recall(path)
    if rows is None:
        rows = tuple(
            _measure(shape, tokens, tried, weight_dtype) for shape in wanted for tokens in BATCHES
        )
        _remember(path, rows)
    means = {
        candidate: math.exp(
            sum(math.log(row.microseconds[candidate.name]) for row in rows) / len(rows)
        )
        for candidate in tried
    }
    best = min(tried, key=lambda candidate: means[candidate])
    shown = ", ".join(f"{candidate.name} {means[candidate]:.0f} us" for candidate in tried)
    return KernelTable(
        impl=best.impl,
        dtype=best.dtype,
        reason=f"geometric mean over {len(rows)} products: {shown}"
        + (f"; {unavailable}" if unavailable else ""),
        cpu_unavailable=unavailable,
        rows=rows,
    )


def _measure(
    shape: tuple[int, int],
    tokens: int,
    tried: Sequence[Candidate],
    weight_dtype: torch.dtype,
) -> Measured:
    out_features, in_features = shape
    weight = torch.zeros(out_features, in_features, dtype=weight_dtype)
    runs = []
    for candidate in tried:
        prepared = ops.prepare_linear(weight, impl=candidate.impl, dtype=candidate.dtype)
        runs.append((torch.zeros(tokens, in_features, dtype=candidate.dtype), prepared))
    times: list[list[float]] = [[] for _ in runs]
    for x, prepared in runs:
        ops.linear(x, prepared)
    # In turns, so that a neighbour's load hits all candidates alike.
    until = time.perf_counter() + BUDGET_S * len(runs)
    while len(times[0]) < 3 or (time.perf_counter() < until and len(times[0]) < 30):
        for taken, (x, prepared) in zip(times, runs, strict=True):
            start = time.perf_counter()
            ops.linear(x, prepared)
            taken.append(time.perf_counter() - start)
    return Measured(
        out_features=out_features,
        in_features=in_features,
        tokens=tokens,
        microseconds={
            candidate.name: min(taken) * 1e6 for candidate, taken in zip(tried, times, strict=True)
        },
    )


def _path(
    folder: Path,
    tried: Sequence[Candidate],
    shapes: Sequence[tuple[int, int]],
    weight_dtype: torch.dtype,
) -> Path:
    """Everything that the times depend on is in the name."""
    threads = library.runtime().num_threads if tried[0].impl == "cpu" else 0
    sources = hashlib.sha256()
    for source in sorted(build.SOURCES.iterdir()):
        sources.update(source.read_bytes())
    told = json.dumps(
        [
            FORMAT,
            build.cpu_kind(),
            torch.__version__,
            torch.get_num_threads(),
            threads,
            sources.hexdigest(),
            [candidate.name for candidate in tried],
            list(shapes),
            str(weight_dtype),
        ]
    )
    return folder / "kernels" / f"table-{hashlib.sha256(told.encode()).hexdigest()[:24]}.json"


def _recall(path: Path) -> tuple[Measured, ...] | None:
    try:
        return tuple(Measured(**row) for row in json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # not there, or damaged: measure (again)


def _remember(path: Path, rows: Sequence[Measured]) -> None:
    """Write atomically; a folder that cannot be written costs the next start a measurement."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="table-") as work:
            written = Path(work) / path.name
            written.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")
            written.replace(path)
    except OSError:
        return
