"""The heartbeat of the step loop on a page of memory that both processes see.

A message could not tell of a step that takes long or hangs, since it is sent between steps; a
page costs nothing to write, wakes nobody and can be read whatever the writer is doing.
"""

import mmap
import os
import struct
import tempfile

from paceline_engine.serve.step.engine_client import Heartbeat

_LAYOUT = struct.Struct("<qdqdq")
_SIZE = mmap.PAGESIZE
_MAX_READS = 1000


class SharedHeartbeat:
    """One writer, any number of readers. A sequence number on both ends tells a torn read."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, _SIZE)
        self._sequence = _LAYOUT.unpack_from(self._page, 0)[0]

    @staticmethod
    def create_file() -> int:
        """An unnamed file of the right size; returns its descriptor, which the caller closes."""
        with tempfile.TemporaryFile() as file:
            file.truncate(_SIZE)
            return os.dup(file.fileno())

    def write(self, heartbeat: Heartbeat) -> None:
        """Publish; for the one writer."""
        self._sequence += 1
        _LAYOUT.pack_into(
            self._page,
            0,
            self._sequence,
            heartbeat.last_progress_s,
            int(heartbeat.has_work),
            heartbeat.predicted_step_s,
            self._sequence,
        )

    def read(self) -> Heartbeat:
        """What was published last."""
        for _ in range(_MAX_READS):
            first, last_progress_s, has_work, predicted_s, second = _LAYOUT.unpack_from(self._page)
            if first == second:
                break
        return Heartbeat(
            last_progress_s=last_progress_s,
            has_work=bool(has_work),
            predicted_step_s=predicted_s,
        )

    def close(self) -> None:
        """Give the page back."""
        self._page.close()
