"""What the supervisor decides, without processes (`test_run` has those)."""

import socket

from paceline.supervisor import back_off_s, exit_text, free_port, threads_env


def test_the_wait_before_a_restart_doubles_up_to_a_minute() -> None:
    assert [back_off_s(n) for n in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert back_off_s(10_000) == 60


def test_exit_codes_are_told_in_words() -> None:
    assert exit_text(3) == "exit code 3"
    assert exit_text(-9) == "killed by SIGKILL"
    assert exit_text(-1000) == "killed by signal 1000"


def test_a_free_port_can_be_bound() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))


def test_replicas_share_the_cores_and_a_single_one_decides_for_itself() -> None:
    assert threads_env(1) == {}
    assert threads_env(10_000) == {"OMP_NUM_THREADS": "1"}
