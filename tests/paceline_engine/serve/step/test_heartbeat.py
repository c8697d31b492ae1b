import os

from paceline_engine.serve.step.engine_client import Heartbeat
from paceline_engine.serve.step.heartbeat import SharedHeartbeat


def test_what_one_side_writes_the_other_reads() -> None:
    fd = SharedHeartbeat.create_file()
    writer, reader = SharedHeartbeat(fd), SharedHeartbeat(fd)
    os.close(fd)
    assert reader.read() == Heartbeat(last_progress_s=0.0, has_work=False, predicted_step_s=0.0)
    for step in range(3):
        heartbeat = Heartbeat(last_progress_s=step + 0.5, has_work=True, predicted_step_s=0.25)
        writer.write(heartbeat)
        assert reader.read() == heartbeat
    writer.close()
    reader.close()
