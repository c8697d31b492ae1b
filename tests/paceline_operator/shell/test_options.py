"""The command line over the configuration file."""

from pathlib import Path

import pytest

from paceline_operator.resources.config import LogLevel
from paceline_operator.shell import main, options
from paceline_operator.shell.errors import StartRefused
from paceline_operator.shell.options import Reach


def test_options_win_over_the_file_and_what_they_leave_out_stays(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("instance: blue\nworkers: 4\nengine: {image: 'e:1', vllmImage: 'v:1'}\n")
    given = [f"--config={file}", "--namespace=a", "--namespace=b", "--engine-image=e:2"]
    found = options.read(options.parser().parse_args([*given, "--log-level=Debug"]))
    assert (found.instance, found.workers, found.watch_namespaces) == ("blue", 4, ("a", "b"))
    assert (found.engine.image, found.engine.vllm_image) == ("e:2", "v:1")
    assert found.log_level is LogLevel.DEBUG


def test_a_wrong_value_is_refused_whether_it_comes_from_file_or_option(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("workers: many\n")
    with pytest.raises(StartRefused, match="workers"):
        options.read(options.parser().parse_args([f"--config={file}"]))
    with pytest.raises(StartRefused, match="httpPort"):
        options.read(options.parser().parse_args(["--port=70000"]))


def test_in_a_pod_engines_are_reached_in_its_network_elsewhere_by_port_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert options.uses_port_forward(Reach.AUTO)
    assert not options.uses_port_forward(Reach.POD_NETWORK)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert not options.uses_port_forward(Reach.AUTO)
    assert options.uses_port_forward(Reach.PORT_FORWARD)


def test_without_a_master_key_the_start_says_how_to_make_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main([]) == main.EXIT_USAGE
    assert "openssl rand -hex 32" in capsys.readouterr().err
