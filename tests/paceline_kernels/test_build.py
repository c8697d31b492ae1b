import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline_kernels.cpu import build
from paceline_kernels.errors import ImplUnavailableError

SMALL = 'extern "C" int paceline_width() { return 8; }'


@pytest.fixture
def small_sources(tmp_path, monkeypatch, cpp_compiler):
    """A source folder that compiles in no time; the loader treats it as the real one."""
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "kernels.cpp").write_text(SMALL)
    monkeypatch.setattr(build, "SOURCES", folder)
    return folder


def test_the_cache_folder_can_be_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    assert build.cache_folder() == tmp_path
    monkeypatch.delenv("PACELINE_CACHE")
    assert build.cache_folder() == Path.home() / ".cache" / "paceline"


def test_a_user_whom_the_system_does_not_know_has_the_root_as_home(monkeypatch):
    monkeypatch.delenv("PACELINE_CACHE", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 19)  # what pathlib looks up without HOME
    assert build.cache_folder() == Path("/.cache/paceline")


def library_in(folder):
    compiler = build.find_compiler()
    assert compiler is not None, "these tests need a C++ compiler"
    return build.library_path(compiler, folder)


def loads(path):
    return ctypes.CDLL(str(path)).paceline_width() == 8


@pytest.mark.slow
def test_a_compiled_library_is_used_again(small_sources, tmp_path):
    build.load_library(tmp_path)
    before = library_in(tmp_path).stat().st_mtime_ns
    assert loads(library_in(tmp_path))
    build.load_library(tmp_path)
    assert library_in(tmp_path).stat().st_mtime_ns == before
    assert [file.name for file in (tmp_path / "kernels").iterdir()] == [library_in(tmp_path).name]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["empty", "text", "half"])
def test_a_damaged_library_is_compiled_again(small_sources, tmp_path, damage):
    path = library_in(tmp_path)
    if damage == "half":
        build.load_library(tmp_path / "other")
        good = library_in(tmp_path / "other").read_bytes()
        content = good[: len(good) // 2]
    else:
        content = b"" if damage == "empty" else b"not a library"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    build.load_library(tmp_path)
    assert loads(path)


def folder_of_a_compiler(cache, name, *, age_s):
    made = cache / "kernels" / f"build-{name}"
    made.mkdir(parents=True)
    (made / "kernels.so").touch()
    touched = time.time() - age_s
    os.utime(made, (touched, touched))
    return made


@pytest.mark.slow
def test_what_a_killed_compiler_left_is_removed_by_the_next(small_sources, tmp_path):
    left = folder_of_a_compiler(tmp_path, "abcdefgh", age_s=3 * build.COMPILE_TIMEOUT_S)
    build.load_library(tmp_path)
    assert not left.exists()
    assert loads(library_in(tmp_path))


@pytest.mark.slow
def test_a_compiler_that_may_still_run_on_another_machine_keeps_its_folder(small_sources, tmp_path):
    # Nobody here holds the lock: on a shared folder that does not mean that nobody compiles.
    used = folder_of_a_compiler(tmp_path, "ijklmnop", age_s=build.COMPILE_TIMEOUT_S)
    build.load_library(tmp_path)
    assert (used / "kernels.so").exists()
    assert loads(library_in(tmp_path))


def test_nobody_waits_for_ever_for_a_compiler_that_was_stopped(tmp_path):
    other = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with build._alone_in(tmp_path, patience_s=0.0) as is_alone:
            assert not is_alone
        fcntl.flock(other, fcntl.LOCK_UN)
        with build._alone_in(tmp_path, patience_s=0.0) as is_alone:
            assert is_alone
    finally:
        os.close(other)


@pytest.mark.slow
def test_processes_that_race_compile_once_and_all_end_with_a_whole_library(
    small_sources, tmp_path, monkeypatch, cpp_compiler
):
    compiles = tmp_path / "compiles"
    counted = tmp_path / "bin" / "g++"
    counted.parent.mkdir()
    counted.write_text(
        f'#!/bin/sh\ntest "$1" = --version || echo one >> {compiles}\nexec {cpp_compiler} "$@"\n'
    )
    counted.chmod(0o755)
    monkeypatch.setenv("PATH", f"{counted.parent}:{os.environ['PATH']}")
    code = (
        "import sys, pathlib; from paceline_kernels.cpu import build; "
        "build.SOURCES = pathlib.Path(sys.argv[2]); "
        "print(build.load_library(pathlib.Path(sys.argv[1])).paceline_width())"
    )
    cache = tmp_path / "cache"
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(cache), str(small_sources)], stdout=subprocess.PIPE
        )
        for _ in range(3)
    ]
    widths = [process.communicate()[0].strip() for process in racing]
    assert [process.returncode for process in racing] == [0, 0, 0]
    assert widths == [b"8", b"8", b"8"]
    assert compiles.read_text().split() == ["one"]
    assert [file.name for file in (cache / "kernels").iterdir()] == [library_in(cache).name]


def test_another_source_gets_another_file(small_sources, tmp_path):
    first = library_in(tmp_path)
    (small_sources / "kernels.cpp").write_text(SMALL + "\n")
    assert library_in(tmp_path) != first


@pytest.mark.slow
def test_a_source_that_does_not_compile_is_reported(small_sources, tmp_path):
    (small_sources / "kernels.cpp").write_text("int main( {")
    with pytest.raises(ImplUnavailableError, match="error"):
        build.load_library(tmp_path)
    assert not list((tmp_path / "kernels").iterdir())


def test_without_a_compiler_the_error_names_the_torch_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImplUnavailableError, match=r"needs a C\+\+ compiler.*impl 'torch'"):
        build.load_library(tmp_path)


@pytest.mark.slow
def test_without_a_compiler_the_torch_path_still_serves(tmp_path):
    code = (
        "import torch; from paceline_kernels import ops; "
        "print('compiler' in ops.cpu_unavailable_reason(), "
        "ops.silu_and_mul(torch.ones(1, 2)).shape[1])"
    )
    environment = {
        "PATH": str(tmp_path),
        "PACELINE_CACHE": str(tmp_path),
        "PYTHONPATH": ":".join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == ["True", "1"]


def test_a_compiler_that_fails_is_reported_with_its_words(tmp_path, monkeypatch):
    fake = tmp_path / "g++"
    fake.write_text("#!/bin/sh\ntest \"$1\" = --version && exit 0\necho 'disk full' >&2; exit 1\n")
    fake.chmod(0o755)
    sh = shutil.which("sh")
    assert sh is not None
    (tmp_path / "sh").symlink_to(sh)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImplUnavailableError, match=r"/cache/kernels: .*disk full$"):
        build.load_library(tmp_path / "cache")


@pytest.mark.usefixtures("cpp_compiler")
def test_the_key_changes_with_flags_and_cpu(tmp_path, monkeypatch):
    first = library_in(tmp_path)
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    second = library_in(tmp_path)
    monkeypatch.setattr(build, "cpu_kind", lambda: "another")
    assert len({first, second, library_in(tmp_path)}) == 3
