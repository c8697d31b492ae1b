"""The endpoint's port belongs to one run, from its first moment on."""

import pytest

from paceline import endpoint
from paceline.errors import CommandError
from paceline_engine.testing.ports import free_port


def test_of_two_runs_that_start_together_the_second_is_told_at_once() -> None:
    port = free_port()
    with (
        endpoint.listening(port),
        pytest.raises(CommandError, match=f"port {port} .* must be free, got: Address already"),
    ):
        endpoint.listening(port)
    endpoint.listening(port).close()
