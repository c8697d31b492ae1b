"""Errors of the command line: a clear message, an exit code, no traceback."""

import io
import socket
from pathlib import Path

import pytest

from paceline import cli

MINIMAL = """\
apiVersion: paceline.dev/v1alpha1
kind: LLMDeployment
metadata: {name: demo}
spec:
  model: {uri: demo}
"""


def fails(*argv: str) -> tuple[int, str]:
    stderr = io.StringIO()
    code = cli.main(argv, stderr)
    return code, stderr.getvalue()


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.strip() == cli.version()


def test_an_unknown_command_names_the_known_ones() -> None:
    code, text = fails("srv")
    assert code == 2
    assert "invalid choice: 'srv'" in text
    assert "serve" in text


def test_commands_of_this_release_are_listed() -> None:
    listed = cli.build_parser().format_help()
    released = (
        "run",
        "serve",
        "drain",
        "render",
        "fetch",
        "bench",
        "sim",
        "tune",
        "head",
        "draft",
        "version",
    )
    assert all(f"\n    {name} " in listed for name in released)


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["serve"], ["required: MODEL"]),
        (["serve", "demo", "--max-num-seqs", "0"], ["maxNumSeqs", "from 1 to 65536", "got '0'"]),
        (["serve", "demo", "--max-num-seq", "4"], ["unrecognized arguments: --max-num-seq"]),
        (["serve", "demo", "--port", "99999"], ["a port must be 0 to 65535", "got '99999'"]),
        (
            ["serve", "demo", "--max-num-seqs", "9", "--boot-max-num-seqs", "4"],
            ["maxNumSeqs must be <= bootMaxNumSeqs (4), got 9"],
        ),
        (["serve", "demo", "--revision", "main"], ["--revision is for hf:// models"]),
        (
            ["serve", "demo", "--speculative-num-tokens", "4"],
            ["speculativeNumTokens needs a speculativeMethod", "got 4 with method None"],
        ),
        (["run"], ["-f/--file"]),
        (["bench", "serve", "--workload", "big"], ["--workload must be among mixed", "got 'big'"]),
        (["bench", "serve", "--extra", "[1]", "--model", "m"], ["--extra must be a JSON object"]),
        (
            ["bench", "serve", "--model", "m", "--mode", "poisson", "--rate", "0"],
            ["--rate: a number > 0 is needed, got '0'"],
        ),
        (["bench", "serve", "--model", "m", "--as-text"], ["need a tokenizer"]),
        (["bench", "serve", "--api-key-file", "no/such/file"], ["no/such/file", "No such file"]),
        (["bench", "workloads", "--seed", "-1"], ["a whole number from 0 to", "got '-1'"]),
        (["bench", "kv-dtype", "m", "--prompts", "0"], ["a whole number >= 1", "got '0'"]),
        (["bench", "scheduler", "--running", "9" * 5000], ["a whole number <= 1000000000"]),
        (
            ["sim", "--requests", "1" + "0" * 10],
            ["a whole number <= 1000000000", "got '10000000000'"],
        ),
        (["bench", "offload", "m", "--blocks", "7"], ["--blocks must be >= 8", "got 7"]),
        (["bench", "kv-dtype", "m", "--max-tokens", "-3"], ["a whole number >= 1", "got '-3'"]),
        (["bench", "speculation", "m", "--half-width", "nan"], ["a number > 0", "got 'nan'"]),
        (
            ["bench", "speculation", "m", "--proposers", "DraftModel"],
            ["--draft-model and one of the proposers DraftModel and Eagle belong together"],
        ),
        (["bench", "speculation", "m", "--max-tokens", "8"], ["--max-tokens must be >= 16, got 8"]),
        (
            ["bench", "speculation", "m", "--min-rounds", "40"],
            ["--max-rounds must be >= --min-rounds 40, got 30"],
        ),
        (["head", "train", "m", "--out", "x"], ["required: --data"]),
        (
            ["head", "train", "m", "--data", "d", "--out", "x", "--form", "Medusa"],
            ["--form", "'Medusa'", "Eagle"],
        ),
        (["bench", "tuner", "--tuned-s", "nan"], ["a number > 0 is needed", "got 'nan'"]),
        (["sim", "--seed", "-1"], ["a whole number from 0 to", "got '-1'"]),
        (["sim", "--plot", "no/such/x.svg"], ["--plot must be a file in a folder that exists"]),
        (["sim", "--tensor-parallel-size", "2"], ["tensorParallelSize", "2"]),
        (
            ["sim", "--speculative-method", "Mtp", "--speculative-num-tokens", "2"],
            ["speculativeMethod Mtp", "Ngram or Suffix"],
        ),
        (
            [
                *("sim", "--speculative-method", "DraftModel", "--speculative-model", "/m"),
                *("--speculative-num-tokens", "2"),
            ],
            ["speculativeMethod DraftModel", "Ngram or Suffix"],
        ),
    ],
)
def test_a_wrong_flag_says_what_was_expected_and_got(argv: list[str], parts: list[str]) -> None:
    code, text = fails(*argv)
    assert code == 2
    for part in parts:
        assert part in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("argv", "help_of"),
    [
        (["serve", "demo", "--max-num-seq", "4"], "paceline serve"),
        (["run", "-f", "x", "--max-num-seqs", "4"], "paceline run"),
        (["sim", "--replays", "x"], "paceline sim"),
        (["bench", "serve", "--modell", "m"], "paceline bench serve"),
        (["--verbose", "version"], "paceline"),
    ],
)
def test_an_unknown_flag_points_to_the_help_that_lists_what_is_known(
    argv: list[str], help_of: str
) -> None:
    code, text = fails(*argv)
    assert code == 2
    assert f"`{help_of} --help`" in text


def test_an_unknown_flag_is_answered_with_the_one_that_was_meant() -> None:
    assert "(did you mean --max-num-seqs?)" in fails("serve", "demo", "--max-num-seq=4")[1]
    assert "did you mean" not in fails("serve", "demo", "--zzz")[1]


def test_a_missing_manifest_is_named() -> None:
    code, text = fails("run", "-f", "no/such/manifest.yaml")
    assert code == 2
    assert "no/such/manifest.yaml cannot be read: No such file" in text


def test_every_problem_of_a_manifest_is_told(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        MINIMAL.replace("{uri: demo}", "{uri: demo, usi: x}") + "  scheduling: {maxNumSeqs: 0}\n"
    )
    code, text = fails("run", "-f", str(file))
    assert code == 2
    assert "is no valid LLMDeployment" in text
    assert "usi" in text
    assert "maxNumSeqs" in text
    assert "got 0" in text


@pytest.mark.parametrize("text", ["{", "- a\n- b\n", "kind: Pod\n", "", "a: 1\n---\nb: 2\n"])
def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    code, told = fails("run", "-f", str(file))
    assert code == 2
    assert "is no valid LLMDeployment" in told


def test_a_binary_file_is_no_manifest(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF\xff\xfe\x00")
    code, text = fails("run", "-f", str(file))
    assert code == 2
    assert "no UTF-8 text" in text


def test_a_key_that_no_header_can_carry_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    for key in ("schl\u00fcssel", "a\x00b"):
        file.write_text(key)
        code, text = fails("bench", "serve", "--model", "m", "--api-key-file", str(file))
        assert code == 2
        assert "--api-key-file" in text
        assert "printable ASCII" in text


def test_a_port_in_use_is_told_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "demo.yaml"
    file.write_text(MINIMAL)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, text = fails("run", "-f", str(file), "--port", str(port))
    assert code == 2
    assert f"port {port} of 127.0.0.1 must be free" in text
    assert "--port" in text


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, ["keys must be a file that can be read, got: No such file", "check the path"]),
        (b"# none\n\n", ["must hold at least one key, got none; write a line `name:sha256`"]),
        (b"sk-1\nname:abc\n", ["keys, line 2: expected name:sha256 with 64 hex digits"]),
        (b"\xff\xfe", ["keys must be UTF-8 text, got other bytes"]),
    ],
    ids=["missing", "empty", "malformed", "binary"],
)
def test_a_bad_key_file_is_told_before_a_replica_starts(
    tmp_path: Path, content: bytes | None, parts: list[str]
) -> None:
    manifest, keys = tmp_path / "demo.yaml", tmp_path / "keys"
    manifest.write_text(MINIMAL)
    if content is not None:
        keys.write_bytes(content)
    code, text = fails("run", "-f", str(manifest), "--api-key-file", str(keys))
    assert code == 2
    assert text.startswith("paceline: --api-key-file: ")
    for part in parts:
        assert part in text
    assert "abc" not in text, "a line of the file may be a secret"


def test_a_model_that_cannot_be_fetched_gives_its_reason() -> None:
    code, text = fails("fetch", "no/such/model")
    assert code == 3
    assert "DownloadFailed" in text
    assert "no/such/model" in text


def test_fetch_prints_the_folder_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    assert cli.main(["fetch", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"


def test_bench_serve_without_a_server_says_where_it_looked() -> None:
    code, text = fails("bench", "serve", "--base-url", "http://127.0.0.1:1")
    assert code == 2
    assert "http://127.0.0.1:1/v1/models must list a model" in text


def test_workloads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "workloads"]) == 0
    assert "shared_prefix" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        (["bench", "serve", "--model", "m", "--api-key-file"], "--api-key-file"),
        (["bench", "sim", "--model", "m", "--admin-token-file"], "--admin-token-file"),
        (["tune", "--prometheus", "http://h", "-l", "a='b'", "--ca-file"], "--ca-file"),
        (
            ["tune", "--prometheus", "http://h", "-l", "a='b'", "--bearer-token-file"],
            "--bearer-token-file",
        ),
        (["run", "-f"], "the manifest"),
        (["render", "-f"], "the manifest"),
        (["sim", "--fit"], "must be a recording"),
        (["sim", "--replay"], "must be a recording"),
    ],
)
def test_a_file_that_is_no_text_or_no_file_is_named_with_its_flag(
    tmp_path: Path, argv: list[str], flag: str
) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for file in (tmp_path / "bytes", tmp_path, tmp_path / "none"):
        code, text = fails(*argv, str(file))
        assert code == 2
        assert flag in text
        assert str(file) in text
        assert "Traceback" not in text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("engine: 3", "engine must be a mapping, got 3"),
        ("engine: {podDefaults: [a]}", "engine.podDefaults must be a mapping, got ['a']"),
    ],
)
def test_values_of_another_shape_are_told(tmp_path: Path, values: str, said: str) -> None:
    (tmp_path / "m.yaml").write_text(MINIMAL)
    (tmp_path / "v.yaml").write_text(values)
    code, text = fails(
        "render", "-f", str(tmp_path / "m.yaml"), "--values", str(tmp_path / "v.yaml")
    )
    assert (code, said in text) == (2, True)


def test_a_namespace_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(MINIMAL)
    code, text = fails("render", "-f", str(tmp_path / "m.yaml"), "-n", "Bad Name")
    assert (code, "got 'Bad Name'" in text) == (2, True)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError(2, "No such file", "x.svg"), "x.svg: No such file"),
        (OSError("the queue is closed"), "the system: the queue is closed"),
        (TimeoutError(), "the system: TimeoutError"),
    ],
)
def test_an_error_of_the_system_is_told_in_words(error: OSError, text: str) -> None:
    assert cli.system_error_text(error) == text
