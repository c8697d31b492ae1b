import os

from paceline_engine.serve.step.engine_client import Heartbeat
from paceline_engine.serve.step.pulse import SharedPulse


def test_what_one_side_writes_the_other_reads() -> None:
    fd = SharedPulse.create_file()
    writer, reader = SharedPulse(fd), SharedPulse(fd)
    os.close(fd)
    assert reader.read() == Heartbeat(last_progress_s=0.0, has_work=False, predicted_step_s=0.0)
    for step in range(3):
        heartbeat = Heartbeat(last_progress_s=step + 0.5, has_work=True, predicted_step_s=0.25)
        writer.write(heartbeat)
        assert reader.read() == heartbeat
    writer.close()
    reader.close()
