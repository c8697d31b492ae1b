import os
import shutil
from collections.abc import Callable
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

# Machines for tests are shared and noisy: how long one example takes says nothing about the code.
settings.register_profile(
    "paceline", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("paceline")


@pytest.fixture(scope="session")
def leave_out() -> Callable[[str], NoReturn]:
    """`leave_out("needs ...")` skips the test for something that could be installed.

    With PACELINE_REQUIRE=all it fails instead, so that a complete run cannot pass by leaving tests
    out. What nobody can install, a kind of processor, is a plain `pytest.skip`.
    """

    def leave(reason: str) -> NoReturn:
        if os.environ.get("PACELINE_REQUIRE") == "all":
            pytest.fail(reason)
        pytest.skip(reason)

    return leave


@pytest.fixture(scope="session")
def require_program(leave_out: Callable[[str], NoReturn]) -> Callable[[str], str]:
    """`require_program(name)` is the program's path; where it is missing the test is left out."""

    def require(name: str) -> str:
        return shutil.which(name) or leave_out(f"needs the program {name}")

    return require
