import hashlib
import os
from pathlib import Path

import pytest

from paceline_engine.core.errors import StartFailed
from paceline_engine.serve.openai.auth import ApiKeys, Guard
from paceline_engine.serve.openai.errors import ApiError


def line(name: str, key: str) -> str:
    return f"{name}:{hashlib.sha256(key.encode()).hexdigest()}\n"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# tenants\n\n" + line("blue", "sk-blue") + line("red", "sk-red"))
    return path


def test_a_key_belongs_to_its_tenant(key_file: Path) -> None:
    keys = ApiKeys(key_file)
    assert keys.tenant_of("sk-blue") == "blue"
    assert keys.tenant_of("sk-red") == "red"
    assert keys.tenant_of("sk-green") is None
    assert keys.tenant_of("") is None


def test_a_plain_key_is_accepted_under_a_made_up_name(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("sk-plain\n")
    tenant = ApiKeys(path).tenant_of("sk-plain")
    assert tenant is not None
    assert tenant.startswith("key-")


def test_a_changed_file_counts_at_once(key_file: Path) -> None:
    keys = ApiKeys(key_file)
    key_file.write_text(line("green", "sk-green"))
    os.utime(key_file, ns=(1, 1))
    assert keys.tenant_of("sk-green") == "green"
    assert keys.tenant_of("sk-blue") is None


def test_a_file_that_vanishes_or_is_emptied_changes_nothing(key_file: Path) -> None:
    keys = ApiKeys(key_file)
    key_file.write_text("")
    os.utime(key_file, ns=(1, 1))
    assert keys.tenant_of("sk-blue") == "blue"
    key_file.unlink()
    assert keys.tenant_of("sk-blue") == "blue"


@pytest.mark.parametrize("content", [None, "", "# nothing\n", "blue:abc\n"])
def test_a_server_does_not_start_without_a_key(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StartFailed, match=r"--api-key-file: .*keys"):
        ApiKeys(path)


def test_probes_and_scrapers_need_no_key(key_file: Path) -> None:
    guard = Guard(ApiKeys(key_file))
    for path in ("/health", "/health/ready", "/metrics", "/version"):
        assert guard.tenant(path, None) == ""
    for path in ("/v1/models", "/tokenize", "/healthy", "/openapi.json", "/metricsx"):
        with pytest.raises(ApiError) as caught:
            guard.tenant(path, None)
        assert caught.value.status == 401


def test_metrics_can_be_guarded(key_file: Path) -> None:
    guard = Guard(ApiKeys(key_file), metrics_require_key=True)
    with pytest.raises(ApiError):
        guard.tenant("/metrics", None)
    assert guard.tenant("/metrics", "Bearer sk-blue") == "blue"


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic sk-blue", "sk-blue", "bearer x"]
)
def test_anything_but_an_accepted_bearer_key_is_401(key_file: Path, header: str) -> None:
    with pytest.raises(ApiError) as caught:
        Guard(ApiKeys(key_file)).tenant("/v1/models", header)
    assert caught.value.status == 401
    assert caught.value.headers["WWW-Authenticate"] == "Bearer"


def test_without_keys_everybody_is_the_default_tenant() -> None:
    assert Guard(None).tenant("/v1/models", None) == ""


def test_a_header_names_the_tenant_only_where_it_is_trusted(key_file: Path) -> None:
    keys = ApiKeys(key_file)
    trusting = Guard(keys, trusts_tenant_header=True)
    assert Guard(keys).tenant("/v1/models", "Bearer sk-blue", "green") == "blue"
    assert trusting.tenant("/v1/models", "Bearer sk-blue", "green") == "green"
    assert trusting.tenant("/v1/models", "Bearer sk-blue", "") == "blue"
    assert Guard(None, trusts_tenant_header=True).tenant("/v1/models", None, "green") == "green"
    with pytest.raises(ApiError) as caught:
        trusting.tenant("/v1/models", None, "green")
    assert caught.value.status == 401


@pytest.mark.parametrize("name", ["_other", "a b", "x" * 64, "é", "a\n"])
def test_a_name_that_no_tenant_can_have_is_refused(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        Guard(None, trusts_tenant_header=True).tenant("/v1/models", None, name)
    assert caught.value.status == 400
    assert "X-Paceline-Tenant" in caught.value.message
