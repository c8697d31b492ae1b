import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

# Machines for tests are shared and noisy: how long one example takes says nothing about the code.
settings.register_profile(
    "paceline", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("paceline")

# A shell's background and nohup have signals ignored, and who ignores one lets its children inherit
# that. Who catches one does not: so programs that tests start get SIGINT and SIGHUP as usual.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda _number, _frame: None)


@pytest.fixture(scope="session")
def leave_out() -> Callable[[str], NoReturn]:
    """`leave_out("needs ...")` skips the test for something that could be installed.

    With PACELINE_REQUIRE=all it fails instead, so that a complete run cannot pass by leaving tests
    out. What nobody can install, a kind of processor, is a plain `pytest.skip`.
    """

    return _leave_out


@pytest.fixture(scope="session")
def require_program(leave_out: Callable[[str], NoReturn]) -> Callable[[str], str]:
    """`require_program(name)` is the program's path; where it is missing the test is left out."""

    def require(name: str) -> str:
        return shutil.which(name) or leave_out(f"needs the program {name}")

    return require


@pytest.fixture(scope="module")
def browser(
    require_program: Callable[[str], str], leave_out: Callable[[str], NoReturn]
) -> Iterator[object]:
    """A browser; not for the whole session, since playwright's event loop runs as long as it."""
    from paceline_engine.testing import browser as browsers

    program = require_program("chromium")
    with ExitStack() as stack:
        try:
            found = stack.enter_context(browsers.opened(program))
        except ImportError:
            leave_out("needs the package playwright")
        yield found


@pytest.fixture(scope="session")
def cpp_compiler(leave_out: Callable[[str], NoReturn]) -> str:
    """Path of the C++ compiler; where there is none the test is left out."""
    from paceline_kernels.cpu import build

    return build.find_compiler() or leave_out("needs a C++ compiler")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """A test whose fixtures need the C++ kernels is left out where nothing can compile them."""
    return (yield from _leaving_out_kernels())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """The same for a test that names them itself."""
    return (yield from _leaving_out_kernels())


def _leaving_out_kernels() -> Generator[None, object, object]:
    try:
        return (yield)
    except Exception as error:
        build = sys.modules.get("paceline_kernels.cpu.build")
        if build is None or build.find_compiler() is not None:
            raise
        if not isinstance(error, build.ImplUnavailableError):
            raise
        _leave_out(f"needs the C++ kernels: {error}")


def _leave_out(reason: str) -> NoReturn:
    if os.environ.get("PACELINE_REQUIRE") == "all":
        pytest.fail(reason)
    pytest.skip(reason)
