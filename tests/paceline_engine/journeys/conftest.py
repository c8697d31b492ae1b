"""The demo model over a real server: shared by the journeys of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline_engine.model import store
from paceline_engine.testing.oracle import Oracle
from paceline_engine.testing.server_process import ServerProcess, server_process


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The demo model, fetched and converted once into the user's cache."""
    return store.resolve("demo", progress=lambda phase, share: None)


@pytest.fixture(scope="session")
def oracle(demo_folder: Path) -> Oracle:
    """The same model in transformers, float32."""
    return Oracle(demo_folder)


@pytest.fixture(scope="module")
def server(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A float32 server with room for everybody."""
    flags = ("--dtype", "float32", "--num-kv-blocks", "1200")
    with server_process(str(demo_folder), tmp_path_factory.mktemp("server"), *flags) as running:
        yield running
