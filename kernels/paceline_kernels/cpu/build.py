"""Compile the C++ kernels once per kind of CPU into the user's cache folder, and load them.

The file's name holds a hash of the sources, the flags, the compiler's version and the CPU's
features: a new version or another machine on a shared home folder gets its own file. It is written
under a temporary name and renamed, so two processes that start together both end with a whole
file; the second waits for the first, since two compilers would take each other's cores. A checksum
at the end of the file (behind what the loader reads) tells a damaged one, which is compiled again.
"""

import ctypes
import fcntl
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline_kernels.errors import ImplUnavailableError

SOURCES = Path(__file__).parent / "src"
COMPILERS = ("g++", "c++", "clang++")
# O2, not O3: the loops are vectors and unrolled by hand; O3 measured the same and compiles twice
# as long.
FLAGS = (
    "-O2",
    "-std=c++17",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-pthread",
)
COMPILE_TIMEOUT_S = 300
_CHECKSUM_BYTES = 32
_BUILD_PREFIX = "build-"
_LEFT_AFTER_S = 2 * COMPILE_TIMEOUT_S
"""Who has compiled for so long was killed. The lock alone does not say it: a shared folder may have
locks that only their own machine sees, and who got none in time compiles without it."""
_LOCK_POLL_S = 0.1


def cache_folder() -> Path:
    """$PACELINE_CACHE, or ~/.cache/paceline."""
    named = os.environ.get("PACELINE_CACHE")
    return Path(named) if named else _home() / ".cache" / "paceline"


def _home() -> Path:
    """The home folder; / for a user that the system does not know, as containers have it."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def find_compiler() -> str | None:
    """Path of the first C++ compiler on the search path, or None."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


@functools.cache
def cpu_kind() -> str:
    """A short hash of the CPU's model and features: equal kinds run each other's code."""
    told = [platform.machine()]
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        wanted = ("model name", "flags", "Features", "CPU part")
        first = cpuinfo.read_text(encoding="utf-8").split("\n\n")[0]
        told += [line for line in first.splitlines() if line.startswith(wanted)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def has_bf16_units(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU multiplies bfloat16 in hardware, so that torch's bf16 may be the fastest."""
    if not cpuinfo.exists():
        return False
    return bool({"amx_bf16", "avx512_bf16"} & set(cpuinfo.read_text(encoding="utf-8").split()))


def library_path(compiler: str, folder: Path) -> Path:
    """Where the library of these sources, this compiler and this CPU lies or will lie.

    Raises:
        ImplUnavailableError: the compiler cannot be run.
    """
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    digest.update(" ".join(FLAGS).encode() + b"\0" + _version(compiler) + cpu_kind().encode())
    return folder / "kernels" / f"cpu-{digest.hexdigest()[:24]}.so"


def load_library(folder: Path | None = None) -> ctypes.CDLL:
    """Load the compiled kernels, compiling them when the cache has none.

    Raises:
        ImplUnavailableError: there is no compiler, or it failed; the message holds its output.
    """
    compiler = find_compiler()
    if compiler is None:
        raise ImplUnavailableError(
            f"impl 'cpu' needs a C++ compiler ({', '.join(COMPILERS)}) and finds none; install "
            "g++, or use impl 'torch'"
        )
    path = library_path(compiler, folder or cache_folder())
    if not _is_whole(path):
        _compile(compiler, path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ImplUnavailableError(
            f"impl 'cpu': {path} cannot be loaded ({error}); is the cache folder mounted noexec? "
            "Set PACELINE_CACHE to a folder that allows it, or use impl 'torch'"
        ) from error


def _version(compiler: str) -> bytes:
    try:
        return subprocess.run(  # noqa: S603  (the path comes from the search path, no shell)
            [compiler, "--version"], check=True, capture_output=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ImplUnavailableError(
            f"impl 'cpu': {compiler} --version failed: {error}; repair it or use impl 'torch'"
        ) from error


def _is_whole(path: Path) -> bool:
    try:
        content = path.read_bytes()
    except OSError:
        return False
    body, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
    return hashlib.sha256(body).digest() == checksum


def _compile(compiler: str, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(path.parent, COMPILE_TIMEOUT_S) as is_alone:
            if _is_whole(path):
                return
            if is_alone:
                _remove_left(path.parent, time.time() - _LEFT_AFTER_S)
            _compile_into(compiler, path)
    except (OSError, subprocess.SubprocessError) as error:
        raise ImplUnavailableError(
            f"impl 'cpu': compiling into {path.parent} failed: {error}; set PACELINE_CACHE to a "
            "writable folder, or use impl 'torch'"
        ) from error


@contextmanager
def _alone_in(folder: Path, patience_s: float) -> Iterator[bool]:
    """Wait until no other process compiles here; False if there is no knowing.

    It saves work and is not needed for a whole file, so a file system without locks, or somebody
    who holds one too long (a stopped process), is no error.
    """
    opened = os.open(folder, os.O_RDONLY)  # the folder is the lock: no file is left for it
    until = time.monotonic() + patience_s
    is_alone = False
    try:
        while not is_alone:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_alone = True
            except BlockingIOError:
                if time.monotonic() >= until:
                    break
                time.sleep(_LOCK_POLL_S)
            except OSError:
                break
        yield is_alone
    finally:
        os.close(opened)


def _remove_left(folder: Path, until: float) -> None:
    """Remove what killed compilers left that nobody has touched since `until` (a time of files)."""
    for left in folder.glob(f"{_BUILD_PREFIX}*"):
        with suppress(FileNotFoundError):  # its owner was done with it just now
            if left.stat().st_mtime < until:
                shutil.rmtree(left, ignore_errors=True)


def _compile_into(compiler: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=_BUILD_PREFIX) as work:
        built = Path(work) / "kernels.so"
        done = subprocess.run(  # noqa: S603  (fixed arguments, no shell)
            [compiler, *FLAGS, str(SOURCES / "kernels.cpp"), "-o", str(built)],
            check=False,
            capture_output=True,
            text=True,
            timeout=COMPILE_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise ImplUnavailableError(
                f"impl 'cpu': compiling into {path.parent}: {compiler} failed with status "
                f"{done.returncode}: {done.stderr[-2000:].strip()}"
            )
        with built.open("ab") as file:
            file.write(hashlib.sha256(built.read_bytes()).digest())
        built.replace(path)
