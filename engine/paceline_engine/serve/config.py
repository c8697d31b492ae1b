"""What one server is started with. The CLI fills it in; nothing else reads flags or files."""

from dataclasses import dataclass, field
from pathlib import Path

from paceline_crds.settings import EngineSettings

DEFAULT_RUNNER_FACTORY = "paceline_engine.run.runner:Runner.load"
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """One server: a public port, an admin port, one engine behind them.

    Attributes:
        model: URI as the person wrote it (`demo`, `hf://org/name`, `file:///path`, a folder).
        model_dir: folder with weights, tokenizer and config; None: the step process resolves
            `model` to one (and downloads it) while it starts.
        revision: of the weights, as far as known.
        served_name: model name that clients use; empty means `model`.
        cache_dir: where fetched models are kept; None is the store's own default.
        host, port: public listener; port 0 takes a free one.
        admin_host, admin_port: admin listener. Without a token it is kept to loopback.
        api_key_file: accepted keys (`name:sha256` lines or plain keys); None asks for no key.
        metrics_require_key: `/metrics` asks for an API key too.
        admin_token_file: holds the admin token itself.
        admin_token_sha256_file: holds up to two hex SHA-256 digests of accepted admin tokens.
        tuning_file: where a tuner beside the engine writes its state, to be shown; None for none.
        settings: as written, boot maxima may be absent.
        settings_revision: the writer's revision of `settings`; 0 when nobody counted yet.
        settings_file: live settings and their revision, laid over `settings` once the model is
            loaded (`settings_file`); None for none.
        trust_request_chat_template: requests may bring a chat template; a template is a program
            that can loop for long, so only trusted clients should.
        strict: unknown fields of a request body are errors instead of warnings.
        propagation_s: phase 1 of a drain begun by POST, when the body names no time.
        sigterm_propagation_s: phase 1 after SIGTERM; 0 in pods, where preStop was that time.
        shutdown_timeout_s: how long running requests may go on after a signal.
        min_hang_s: a step is never called hung before so long.
        runner_factory: `module:name` of what makes the runner in the step process, called with
            (model_dir, settings, progress).
        log_level: of the project's own loggers and of uvicorn.
    """

    model: str
    settings: EngineSettings = field(default_factory=EngineSettings)
    model_dir: Path | None = None
    revision: str = ""
    served_name: str = ""
    cache_dir: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int = 8001
    api_key_file: Path | None = None
    metrics_require_key: bool = False
    admin_token_file: Path | None = None
    admin_token_sha256_file: Path | None = None
    tuning_file: Path | None = None
    settings_revision: int = 0
    settings_file: Path | None = None
    trust_request_chat_template: bool = False
    strict: bool = False
    propagation_s: float = 5.0
    sigterm_propagation_s: float = 0.0
    shutdown_timeout_s: float = 30.0
    min_hang_s: float = 30.0
    runner_factory: str = DEFAULT_RUNNER_FACTORY
    log_level: str = "info"

    @property
    def model_name(self) -> str:
        """The name under which clients ask for the model."""
        return self.served_name or self.model
