"""Alerts: promtool takes them, each fires when it should and is silent otherwise."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_crds.metrics import METRICS
from paceline_crds.operator_metrics import OPERATOR_METRICS

Document = dict[str, Any]
WHO = 'namespace="models",paceline_dev_deployment="chat",model_name="m",engine="0"'
VALUES = {"prometheusRule": {"enabled": True}, "metrics": {"monitor": "PodMonitor"}}
DOWN = (
    'paceline_operator_deployment_down{namespace="serving",pod="a",'
    'deployment_namespace="models",deployment="chat"}'
)
OPERATOR_UP = ('up{namespace="serving",job="serving/pl-paceline"}', "1x400")

# Series, then the alerts that they raise after six hours.
STORIES: dict[str, tuple[list[tuple[str, str]], list[str]]] = {
    "all is well": (
        [
            (f'paceline:slo_requests_total{{result="good",pod="a",{WHO}}}', "0+60x400"),
            (f'paceline:slo_requests_total{{result="bad",pod="a",{WHO}}}', "0x400"),
            (f'vllm:request_success_total{{finished_reason="stop",pod="a",{WHO}}}', "0+60x400"),
            (f'vllm:request_success_total{{finished_reason="error",pod="a",{WHO}}}', "0x400"),
            (f'vllm:num_requests_running{{pod="a",{WHO}}}', "3x400"),
            (f'paceline:steps_total{{pod="a",{WHO}}}', "0+600x400"),
            (f'paceline:recomputed_tokens_total{{pod="a",{WHO}}}', "0+1x400"),
            (f'vllm:generation_tokens_total{{pod="a",{WHO}}}', "0+6000x400"),
            (f'vllm:prompt_tokens_total{{pod="a",{WHO}}}', "0+6000x400"),
            (f'paceline:oldest_waiting_seconds{{pod="a",{WHO}}}', "2x400"),
            (f'paceline:settings_revision{{pod="a",{WHO}}}', "7x400"),
            (f'paceline:settings_revision{{pod="b",{WHO}}}', "7x400"),
            (f'paceline:draining{{pod="a",{WHO}}}', "0x400"),
            OPERATOR_UP,
        ],
        [],
    ),
    "a fifth misses its targets": (
        [
            (f'paceline:slo_requests_total{{result="good",{WHO}}}', "0+80x400"),
            (f'paceline:slo_requests_total{{result="bad",{WHO}}}', "0+20x400"),
            OPERATOR_UP,
        ],
        ["PacelineSloFastBurn", "PacelineSloSlowBurn"],
    ),
    "a tenth misses its targets": (
        [
            (f'paceline:slo_requests_total{{result="good",{WHO}}}', "0+90x400"),
            (f'paceline:slo_requests_total{{result="bad",{WHO}}}', "0+10x400"),
            OPERATOR_UP,
        ],
        ["PacelineSloSlowBurn"],
    ),
    "requests end with errors": (
        [
            (f'vllm:request_success_total{{finished_reason="stop",{WHO}}}', "0+90x400"),
            (f'vllm:request_success_total{{finished_reason="error",{WHO}}}', "0+10x400"),
            OPERATOR_UP,
        ],
        ["PacelineRequestsFail"],
    ),
    "the queue stands": (
        [(f'paceline:oldest_waiting_seconds{{pod="a",{WHO}}}', "90x400"), OPERATOR_UP],
        ["PacelineQueueTooOld"],
    ),
    "an engine makes no step": (
        [
            (f'vllm:num_requests_running{{pod="a",{WHO}}}', "3x400"),
            (f'paceline:steps_total{{pod="a",{WHO}}}', "500x400"),
            OPERATOR_UP,
        ],
        ["PacelineEngineStalled"],
    ),
    "an idle engine makes no step": (
        [
            (f'vllm:num_requests_running{{pod="a",{WHO}}}', "0x400"),
            (f'paceline:steps_total{{pod="a",{WHO}}}', "500x400"),
            OPERATOR_UP,
        ],
        [],
    ),
    "tokens are computed twice": (
        [
            (f'paceline:recomputed_tokens_total{{pod="a",{WHO}}}', "0+2000x400"),
            (f'vllm:generation_tokens_total{{pod="a",{WHO}}}', "0+3000x400"),
            (f'vllm:prompt_tokens_total{{pod="a",{WHO}}}', "0+3000x400"),
            OPERATOR_UP,
        ],
        ["PacelineKvCacheThrashing"],
    ),
    "replicas differ": (
        [
            (f'paceline:settings_revision{{pod="a",{WHO}}}', "7x400"),
            (f'paceline:settings_revision{{pod="b",{WHO}}}', "6x400"),
            OPERATOR_UP,
        ],
        ["PacelineSettingsDiffer"],
    ),
    "a drain never ends": (
        [(f'paceline:draining{{pod="a",{WHO}}}', "1x400"), OPERATOR_UP],
        ["PacelineDrainTakesLong"],
    ),
    "the operator is gone": (
        [('up{namespace="serving",job="serving/pl-paceline"}', "1x10 0x390")],
        ["PacelineOperatorDown"],
    ),
    "the operator works": (
        [
            ('paceline_operator_reconciles_total{namespace="serving",result="failed"}', "2x400"),
            ('paceline_operator_is_leader{namespace="serving",pod="a"}', "1x400"),
            ('paceline_operator_is_leader{namespace="serving",pod="b"}', "0x400"),
            ('paceline_operator_deployments{namespace="serving",ready="False"}', "0x400"),
            OPERATOR_UP,
        ],
        [],
    ),
    "the operator fails": (
        [
            ('paceline_operator_reconciles_total{namespace="serving",result="failed"}', "0+1x400"),
            OPERATOR_UP,
        ],
        ["PacelineOperatorFails"],
    ),
    "nobody holds the Lease": (
        [('paceline_operator_is_leader{namespace="serving",pod="a"}', "0x400"), OPERATOR_UP],
        ["PacelineOperatorHasNoLeader"],
    ),
    "a model is down": (
        [
            (DOWN, "1x400"),
            OPERATOR_UP,
        ],
        ["PacelineDeploymentDown"],
    ),
    "a model is not ready": (
        [
            ('paceline_operator_deployments{namespace="serving",ready="False"}', "1x400"),
            OPERATOR_UP,
        ],
        ["PacelineDeploymentNotReady"],
    ),
}


@pytest.fixture(scope="module")
def groups(render: Callable[..., list[Document]]) -> list[Document]:
    [rule] = [item for item in render(VALUES) if item["kind"] == "PrometheusRule"]
    found: list[Document] = rule["spec"]["groups"]
    return found


@pytest.fixture(scope="module")
def alerts(groups: list[Document]) -> list[Document]:
    return [alert for group in groups for alert in group["rules"]]


def write_rules(folder: Path, groups: list[Document]) -> Path:
    target = folder / "rules.yaml"
    target.write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    return target


def test_promtool_takes_the_rules(
    require_program: Callable[[str], str], groups: list[Document], tmp_path: Path
) -> None:
    promtool = require_program("promtool")
    command = [promtool, "check", "rules", "--lint-fatal", write_rules(tmp_path, groups)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_in_its_story_and_in_no_other(
    require_program: Callable[[str], str],
    groups: list[Document],
    alerts: list[Document],
    tmp_path: Path,
) -> None:
    promtool = require_program("promtool")
    names = [alert["alert"] for alert in alerts]
    file = write_rules(tmp_path, groups)

    # promtool compares all labels and texts of an expected alert; what fires is asked of ALERTS.
    tests = [
        {
            "name": story,
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in inputs],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                    "eval_time": "6h",
                    "exp_samples": [{"labels": "{}", "value": 1}] if name in expected else [],
                }
                for name in names
            ],
        }
        for story, (inputs, expected) in STORIES.items()
    ]
    told = tmp_path / "tests.yaml"
    body = {"rule_files": [file.name], "evaluation_interval": "1m", "tests": tests}
    told.write_text(yaml.safe_dump(body), encoding="utf-8")
    done = subprocess.run(
        [promtool, "test", "rules", told], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    raised = {name for _, expected in STORIES.values() for name in expected}
    assert raised == set(names), "an alert without its story"


def test_each_alert_says_what_it_means_and_what_to_do(alerts: list[Document]) -> None:
    for alert in alerts:
        assert alert["labels"]["severity"] in {"warning", "critical"}
        assert {"summary", "description", "runbook"} <= alert["annotations"].keys()
        assert len(alert["annotations"]["runbook"]) > 60


def test_alerts_use_metrics_that_the_engine_has(alerts: list[Document]) -> None:
    for alert in alerts:
        for name in re.findall(r"(?:vllm|paceline):\w+", alert["expr"]):
            assert name in METRICS, f"{alert['alert']} asks for {name}"


def test_alerts_use_metrics_that_the_operator_has(alerts: list[Document]) -> None:
    asked = {
        name for alert in alerts for name in re.findall(r"paceline_operator_\w+", alert["expr"])
    }
    assert asked
    assert asked <= OPERATOR_METRICS.keys()
