"""The token of one deployment for a person who has the operator's master key."""

import io
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from paceline_operator.shell import admin_token
from paceline_operator.shell.keys import MasterKeys

DEPLOYMENT = {
    "apiVersion": "paceline.dev/v1alpha1",
    "kind": "LLMDeployment",
    "metadata": {"namespace": "models", "name": "chat", "uid": "u1"},
}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "current"
    file.write_bytes(bytes(range(100, 148)))  # as the chart makes it: bytes, no text
    return file


def printed(
    *arguments: str, given: Mapping[str, object] | str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    text = given if isinstance(given, str) else json.dumps(given)
    code = admin_token.main(arguments, io.StringIO(text))
    return code, *capsys.readouterr()


def test_it_is_the_token_that_the_operator_uses(
    key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (token,) = MasterKeys(key).tokens(DEPLOYMENT)
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"adminTokens": {"masterKeyFile": str(key)}}))
    for arguments in (("--config", str(config)), ("--master-key-file", str(key))):
        assert printed(*arguments, given=DEPLOYMENT, capsys=capsys) == (0, f"{token}\n", "")


def test_while_keys_are_replaced_it_is_the_newest(
    key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    previous = tmp_path / "previous"
    previous.write_text("p" * 32)
    config = tmp_path / "config.yaml"
    tokens = {"masterKeyFile": str(key), "previousMasterKeyFile": str(previous)}
    config.write_text(yaml.safe_dump({"adminTokens": tokens}))
    newest, _ = MasterKeys(key, previous).tokens(DEPLOYMENT)
    arguments = ("--config", str(config))
    assert printed(*arguments, given=DEPLOYMENT, capsys=capsys) == (0, f"{newest}\n", "")


@pytest.mark.parametrize(
    "given",
    [
        "",
        "[]",
        {**DEPLOYMENT, "kind": "List"},
        {**DEPLOYMENT, "metadata": {"namespace": "models", "name": "chat"}},
    ],
    ids=["nothing", "no object", "several objects", "a manifest, which has no uid"],
)
def test_anything_but_one_object_of_a_cluster_is_refused(
    key: Path, given: Mapping[str, object] | str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = printed("--master-key-file", str(key), given=given, capsys=capsys)
    assert (code, out) == (2, "")
    assert "kubectl get llmdep NAME -o json" in error


def test_without_a_key_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    code, _, error = printed("--config", str(config), given=DEPLOYMENT, capsys=capsys)
    assert code == 2
    assert str(config) in error
    config.write_text("{}\n")
    code, _, error = printed("--config", str(config), given=DEPLOYMENT, capsys=capsys)
    assert code == 2
    assert "adminTokens.masterKeyFile" in error
