import os
import shutil
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

# Machines for tests are shared and noisy: how long one example takes says nothing about the code.
settings.register_profile(
    "paceline", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("paceline")


@pytest.fixture(scope="session")
def require_program() -> Callable[[str], str]:
    """`require_program(name)` is the program's path.

    Where it is missing the test is skipped by name; with PACELINE_REQUIRE=all it fails instead, so
    that a complete run cannot pass by leaving tests out.
    """

    def require(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            message = f"needs the program {name}"
            if os.environ.get("PACELINE_REQUIRE") == "all":
                pytest.fail(message)
            pytest.skip(message)
        return path

    return require
