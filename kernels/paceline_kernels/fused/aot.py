"""Compile every kernel for every target without a device: registers, spills, shared memory.

`python -m paceline_kernels.fused.aot TABLE` writes the table; with `--check` it compares instead.
Both fail where a kernel spills. Each case is compiled in a process of its own: LLVM ends the
process on what it cannot compile.
"""

import argparse
import difflib
import importlib.metadata
import itertools
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from paceline_kernels.errors import KernelError
from paceline_kernels.fused.aot_cases import TARGETS, Case, Target, cases
from paceline_kernels.fused.runtime import Launch

_POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one compiled kernel takes.

    Attributes:
        registers: of a thread; on AMD vector registers, accumulators included.
        spills: bytes of stack of a thread; on AMD spilled vector registers (scalar ones are kept in
            lanes of vector registers, not in memory).
        shared_bytes: of a program.
    """

    registers: int
    spills: int
    shared_bytes: int


def source_of(launch: Launch) -> ASTSource:
    """The launch as Triton specialises it: alignment, ones, absent pointers, constants."""
    signature: dict[str, str] = {}
    constants: dict[str, object] = {}
    attributes: dict[tuple[int, ...], list[list[object]]] = {}
    for index, parameter in enumerate(launch.kernel.params):
        name = parameter.name
        is_constant = name in launch.constants
        value: Any = launch.constants[name] if is_constant else launch.arguments[name]
        if is_constant or value is None:
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, Tensor):
            signature[name], attributes[(index,)] = _POINTERS[value.dtype], _ALIGNED
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1 and not parameter.do_not_specialize:
            signature[name], constants[name] = "constexpr", 1
        else:
            signature[name] = "i32"
            if value % 16 == 0 and not parameter.do_not_specialize:
                attributes[(index,)] = _ALIGNED
    return ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)


def compile_case(case: Case, target: Target) -> Usage:
    """Compile here, in this process."""
    launch = case.launch(target)
    compiled = triton.compile(
        source_of(launch),
        target=GPUTarget(target.backend, target.arch, target.warp_size),
        options={
            "num_warps": launch.num_warps,
            "num_stages": launch.num_stages,
            "enable_fp_fusion": True,
        },
    )
    shared = int(compiled.metadata.shared)
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        registers, spills = (
            _number(rf"\.{name}:\s+(\d+)", text) for name in ("vgpr_count", "vgpr_spill_count")
        )
        return Usage(registers=registers, spills=spills, shared_bytes=shared)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        told = subprocess.run(  # noqa: S603  (the program that triton brings)
            [_cuobjdump(), "--dump-resource-usage", file.name],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    return Usage(
        registers=_number(r"REG:(\d+)", told),
        spills=_number(r"STACK:(\d+)", told),
        shared_bytes=shared,
    )


def _cuobjdump() -> Path:
    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise KernelError(f"the compiler's report must contain {pattern}, got {text[:2000]}")
    return int(found[1])


def _child(case: Case, target: Target, sender: Connection) -> None:
    sender.send(compile_case(case, target))


def _apart(jobs: list[tuple[Case, Target]]) -> list[Usage]:
    """Compile each job in a process of its own, as many at a time as there are usable cores.

    Processes are forked by this thread alone, so that no lock is held by another one's copy.

    Raises:
        KernelError: a process ended without a result; its own message is above.
    """
    found: dict[int, Usage] = {}
    running: dict[Connection, tuple[int, ForkProcess]] = {}
    context = multiprocessing.get_context("fork")
    waiting = iter(enumerate(jobs))
    while len(found) < len(jobs):
        for index, (case, target) in itertools.islice(waiting, _cores() - len(running)):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(case, target, sender))
            process.start()
            sender.close()
            running[receiver] = (index, process)
        for ready in wait(list(running)):
            assert isinstance(ready, Connection)
            index, process = running.pop(ready)
            case, target = jobs[index]
            try:
                found[index] = ready.recv()
            except EOFError:
                process.join()
                raise KernelError(
                    f"{case.kernel} {case.formats} {case.head_dim} must compile for "
                    f"{target.name}, the compiler's process ended with {process.exitcode}"
                ) from None
            process.join()
            sys.stderr.write(
                f"{len(found)}/{len(jobs)} {target.name} {case.kernel} {case.formats} "
                f"{case.head_dim or ''}: {found[index]}\n"
            )
    return [found[index] for index in range(len(jobs))]


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def table(rows: Iterable[tuple[Case, dict[str, Usage]]]) -> str:
    """The page that is committed."""
    version = importlib.metadata.version("triton")
    lines = [
        "# Kernels compiled ahead of time",
        "",
        f"Made by `make kernels-aot` with triton {version}; `make kernels-aot-check` compares, and",
        "fails on a spill. Of each kernel the first configuration of `fused/configs.py`, given as",
        "`block_m x tile, warps, stages` where it has one. Cells: registers of a thread, spills,",
        "shared memory of a program in bytes. gfx942 counts vector registers with accumulators.",
        "",
        "| kernel | formats | head size | configuration | "
        + " | ".join(target.name for target in TARGETS)
        + " |",
        "|---" * (4 + len(TARGETS)) + "|",
    ]
    for case, usages in rows:
        launch = case.launch(TARGETS[0])
        sizes = [
            str(launch.constants[name]) for name in ("BLOCK_M", "TILE") if name in launch.constants
        ]
        config = ", ".join(
            [*([" x ".join(sizes)] if sizes else []), str(launch.num_warps), str(launch.num_stages)]
        )
        cells = [
            f"{usages[target.name].registers}, {usages[target.name].spills}, "
            f"{usages[target.name].shared_bytes}"
            for target in TARGETS
        ]
        head_dim = "" if case.head_dim is None else str(case.head_dim)
        lines.append(f"| {' | '.join([case.kernel, case.formats, head_dim, config, *cells])} |")
    return "\n".join(lines) + "\n"


def compile_all(wanted: list[Case]) -> list[tuple[Case, dict[str, Usage]]]:
    """Compile each case for each target."""
    usages = iter(_apart([(case, target) for case in wanted for target in TARGETS]))
    return [(case, {target.name: next(usages) for target in TARGETS}) for case in wanted]


def main() -> int:
    """Write or check the table; 1 where it differs or a kernel spills."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    rows = compile_all(list(cases()))
    made = table(rows)
    spilling = [
        f"{case.kernel} {case.formats} {case.head_dim} spills {usage.spills} on {name}"
        for case, usages in rows
        for name, usage in usages.items()
        if usage.spills
    ]
    kept = arguments.table.read_text(encoding="utf-8") if arguments.check else made
    difference = list(
        difflib.unified_diff(
            kept.splitlines(), made.splitlines(), str(arguments.table), "compiled", lineterm=""
        )
    )
    if not arguments.check:
        arguments.table.write_text(made, encoding="utf-8")
    sys.stdout.write("\n".join([*difference, *spilling, f"{len(rows)} kernels"]) + "\n")
    return 1 if difference or spilling else 0


if __name__ == "__main__":
    sys.exit(main())
