"""The public app: everything that clients, probes and scrapers ask for."""

from fastapi import FastAPI

from paceline_engine import release
from paceline_engine.serve import health
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.openai import errors, generation_routes, openapi, text_routes
from paceline_engine.serve.openai.auth import ApiKeys, Guard
from paceline_engine.serve.openai.launch import Launcher
from paceline_engine.serve.openai.middleware import RequestMiddleware
from paceline_engine.serve.openai.served_model import ServedModel
from paceline_engine.serve.step.engine_client import EngineClient


def create_public_app(
    client: EngineClient, config: ServeConfig, drain: Drain, served: ServedModel | None = None
) -> FastAPI:
    """Build the app; the engine may still be starting.

    Args:
        client: of the engine.
        config: what the server was started with.
        drain: read by the readiness probe. `drain_gate.DrainGate` goes around the app.
        served: reads tokenizer and template on the first request unless it has done so.

    Raises:
        StartFailed: the API key file cannot be used.
    """
    keys = None if config.api_key_file is None else ApiKeys(config.api_key_file)
    app = FastAPI(
        title="Paceline",
        version=release.version(),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    served = served or ServedModel(client, config)
    launcher = Launcher(client=client, config=config, served=served)
    app.include_router(generation_routes.router(launcher))
    app.include_router(text_routes.router(client, config, served, drain))
    app.include_router(health.router(client, drain, min_hang_s=config.min_hang_s))
    guard = Guard(
        keys,
        metrics_require_key=config.metrics_require_key,
        trusts_tenant_header=config.settings.trust_tenant_header,
    )
    app.add_middleware(RequestMiddleware, guard=guard)
    errors.install(app)
    openapi.install(app)
    return app
