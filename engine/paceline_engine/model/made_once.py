"""A folder of the cache that one process makes while others wait, whole or not at all."""

import fcntl
import glob
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from paceline_engine.core.errors import StartFailed

_POLL_S = 0.2


@contextmanager
def made_once(
    folder: Path,
    is_whole: Callable[[Path], bool] = Path.is_dir,
    waiting: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Path, Path | None]]:
    """Give (folder, where to build it); the second is None when it exists already.

    What was built appears under its name only when the block ends without an error. What a killed
    builder left is removed by the next one, and a folder that has lost something since is made
    again.

    Args:
        folder: where it will lie; its parents are made.
        is_whole: whether what lies there is all there.
        waiting: called several times a second while another process builds.

    Raises:
        StartFailed: DownloadFailed, the cache folder cannot be written.
    """
    if is_whole(folder):
        yield folder, None
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f"{folder.name}.lock").open("w") as lock:
            _take(lock, waiting)
            if is_whole(folder):
                yield folder, None
                return
            for left in folder.parent.glob(f".{glob.escape(folder.name)}-????????"):
                shutil.rmtree(left, ignore_errors=True)
            building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            try:
                yield folder, building
                building.chmod(0o755)
                if folder.exists():
                    shutil.rmtree(folder)
                building.rename(folder)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    except OSError as error:
        raise StartFailed(
            "DownloadFailed",
            f"the cache folder {folder.parent} cannot be used: {error.strerror or error}; make "
            "room or name another folder with --cache-dir or PACELINE_CACHE",
        ) from error


def _take(lock: IO[str], waiting: Callable[[], None]) -> None:
    """Lock the file. In turns with `waiting`, so that whoever waits can say so and be stopped."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            time.sleep(_POLL_S)
        else:
            return
