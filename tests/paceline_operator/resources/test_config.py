"""The operator's configuration file: read as a whole, or refused by key."""

import pytest

from paceline_operator.resources import config
from paceline_operator.resources.config import InvalidConfig, LogFormat


def test_no_file_at_all_gives_the_defaults() -> None:
    read = config.parse("")
    assert read == config.OperatorConfig()
    assert (read.instance, read.watch_namespaces, read.lease.name) == ("default", (), "")


def test_every_key_is_read() -> None:
    read = config.parse(
        """
instance: blue
namespace: paceline
watchNamespaces: [models, more-models]
operatorLabels: {app.kubernetes.io/name: paceline-operator}
httpPort: 9090
resyncSeconds: 60
workers: 4
logFormat: Json
logLevel: Debug
engine:
  image: registry.example/engine:1
  vllmImage: registry.example/vllm:2
  podDefaults: {nodeSelector: {pool: gpu}}
prometheus:
  url: https://prometheus.example:9090
  bearerTokenFile: /var/run/token
  caFile: /etc/ca.crt
adminTokens: {masterKeyFile: /etc/key/current, previousMasterKeyFile: /etc/key/previous}
lease: {name: paceline-operator, durationSeconds: 20}
"""
    )
    assert read.instance == "blue"
    assert read.watch_namespaces == ("models", "more-models")
    assert read.log_format is LogFormat.JSON
    assert read.engine.pod_defaults == {"nodeSelector": {"pool": "gpu"}}
    assert read.prometheus.bearer_token_file == "/var/run/token"
    assert read.admin_tokens.previous_master_key_file == "/etc/key/previous"
    assert (read.resync_s, read.lease.duration_s) == (60, 20)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("engine: {imagee: x}", "engine.imagee: Extra inputs are not permitted"),
        ("prometheus: {url: 'ftp://x'}", "prometheus.url"),
        ("watchNamespaces: [Models]", "watchNamespaces.0"),
        ("namespace: a/b", "namespace"),
        ("lease: {durationSeconds: 1}", "greater than or equal to 2, got 1"),
        ("[]", "must be a mapping, got a list"),
        ("a: [", "must be YAML"),
    ],
)
def test_what_is_wrong_is_refused_by_its_key(text: str, told: str) -> None:
    with pytest.raises(InvalidConfig, match=None) as refused:
        config.parse(text)
    assert told in str(refused.value)
