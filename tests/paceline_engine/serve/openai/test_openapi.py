"""The OpenAPI document, and what a machine that only read the document gets from the server."""

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.openai.app import create_public_app
from paceline_engine.testing.scripted_engine import ScriptedEngine, saying


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> ScriptedEngine:
    return ScriptedEngine(tiny_folder, saying([80, 81, 300]))


@pytest.mark.slow
def test_no_request_from_the_document_breaks_the_server(engine: ScriptedEngine) -> None:
    app = create_public_app(engine, ServeConfig(model="tiny"), Drain(shutdown_timeout_s=1.0))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    names = []
    for found in schema.get_all_operations():
        operation = found.ok()
        names.append(operation.label)

        @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=st.one_of(*(operation.as_strategy(generation_mode=m) for m in GenerationMode)))
        def answers_as_documented(case: Any) -> None:
            case.call_and_validate(
                checks=[
                    not_a_server_error,
                    status_code_conformance,
                    content_type_conformance,
                    response_schema_conformance,
                ]
            )
            assert not engine.running

        answers_as_documented()
    assert "POST /v1/chat/completions" in names
    assert "POST /v1/completions" in names


def test_the_document_has_bodies_bounds_and_failures(engine: ScriptedEngine) -> None:
    app = create_public_app(engine, ServeConfig(model="tiny"), Drain(shutdown_timeout_s=1.0))
    made = app.openapi()
    chat = made["paths"]["/v1/chat/completions"]["post"]
    assert {"200", "400", "401", "404", "408", "413", "415", "429", "500", "503"} == set(
        chat["responses"]
    )
    reference = chat["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    body = made["components"]["schemas"][reference.rsplit("/", 1)[-1]]
    bounds = next(item for item in body["properties"]["temperature"]["anyOf"] if "maximum" in item)
    assert (bounds["minimum"], bounds["maximum"]) == (0, 2)
    assert body["required"] == ["messages"]
