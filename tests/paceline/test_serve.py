"""Flags of `paceline serve` become a ServeConfig."""

import os
from pathlib import Path

import pytest

from paceline import serve
from paceline.errors import CommandError
from paceline.parser import Parser
from paceline_crds.settings import DType, SchedulingPolicy
from paceline_engine.serve.config import ServeConfig


def config(*argv: str) -> ServeConfig:
    parser = Parser(prog="paceline serve")
    serve.add_arguments(parser)
    return serve.config_of(parser.parse_args(argv))


def test_without_flags_the_defaults_of_the_server_hold() -> None:
    got = config("demo")
    assert got == ServeConfig(model="demo", served_name="demo", settings=got.settings)
    assert got.settings.model_fields_set == set()


def test_flags_with_the_names_of_vllm_are_understood() -> None:
    got = config(
        "folder",
        *("--host", "0.0.0.0", "--port", "9000", "--dtype", "float32"),
        *("--max-model-len", "512", "--max-num-batched-tokens", "256", "--max-num-seqs", "4"),
        *("--block-size", "32", "--gpu-memory-utilization", "0.5", "--kv-cache-dtype", "auto"),
        *("--no-enable-prefix-caching", "--scheduling-policy", "priority"),
        *("--served-model-name", "m", "--api-key-file", "keys"),
    )
    assert (got.host, got.port, got.served_name) == ("0.0.0.0", 9000, "m")
    assert got.api_key_file == Path("keys")
    settings = got.settings
    assert settings.dtype is DType.FLOAT32
    assert settings.scheduling_policy is SchedulingPolicy.PRIORITY
    assert (settings.max_model_len, settings.max_num_seqs, settings.block_size) == (512, 4, 32)
    assert settings.prefix_caching is False


def test_flags_of_our_own_are_understood() -> None:
    got = config(
        "demo",
        *("--admin-port", "0", "--admin-token-sha256-file", "digests", "--num-kv-blocks", "64"),
        *("--boot-max-num-seqs", "512", "--settings-revision", "7", "--shutdown-timeout-s", "1.5"),
        *("--strict", "--metrics-require-key", "--settings-file", "live.json"),
        "--trust-request-chat-template",
    )
    assert got.settings_file == Path("live.json")
    assert (got.admin_port, got.settings_revision, got.shutdown_timeout_s) == (0, 7, 1.5)
    assert got.admin_token_sha256_file == Path("digests")
    assert (got.settings.num_kv_blocks, got.settings.boot_max_num_seqs) == (64, 512)
    assert got.strict
    assert got.metrics_require_key
    assert got.trust_request_chat_template


def test_a_revision_becomes_part_of_the_uri() -> None:
    assert config("hf://a/b", "--revision", "v1").model == "hf://a/b@v1"
    with pytest.raises(CommandError, match="--revision is for hf:// models"):
        config("hf://a/b@v1", "--revision", "v2")


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("demo", "demo"),
        ("hf://org/name", "org/name"),
        ("hf://org/name@main", "org/name"),
        ("file:///models/a", "/models/a"),
        ("models/a", "models/a"),
    ],
)
def test_a_model_without_a_name_is_called_by_its_uri_without_scheme(uri: str, name: str) -> None:
    assert config(uri).served_name == name


def test_a_replica_whose_owner_has_gone_does_not_start() -> None:
    with pytest.raises(CommandError, match="has ended"):
        serve.end_with_parent(os.getpid())
