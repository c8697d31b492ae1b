"""An operator without its packages says what to install."""

import subprocess
import sys

import pytest

from paceline_operator import missing

START = """
import runpy, sys
sys.modules[sys.argv.pop(1)] = None
runpy.run_module("paceline_operator", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", ["kopf", "aiohttp", "prometheus_client"])
def test_an_environment_without_a_package_gives_one_line_and_an_exit_code(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START, package, "--no-such-flag"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"needs the package {package}" in done.stderr
    assert "install `paceline[operator]`" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_module_of_our_own_that_is_missing_is_a_defect_and_told_as_one() -> None:
    ours = ModuleNotFoundError("No module named 'paceline_operator.x'", name="paceline_operator.x")
    with pytest.raises(ModuleNotFoundError):
        missing.told(ours)
    assert "package kopf," in missing.told(ModuleNotFoundError("x", name="kopf.engines"))
