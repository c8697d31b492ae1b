"""Paths of the HTTP surface, once: servers mount them, the operator and the CLI call them."""

OPENAI_BASE = "/v1"
"""What OpenAI's clients take as the end of their base URL."""

MODELS = f"{OPENAI_BASE}/models"
CHAT_COMPLETIONS = f"{OPENAI_BASE}/chat/completions"
COMPLETIONS = f"{OPENAI_BASE}/completions"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
VERSION = "/version"
METRICS = "/metrics"

TENANT_HEADER = "X-Paceline-Tenant"
"""Names the tenant of a request, where the engine is told to trust it."""

HEALTH = "/health"
HEALTH_LIVE = "/health/live"
HEALTH_READY = "/health/ready"
HEALTH_STARTUP = "/health/startup"

ADMIN_STATUS = "/v1/paceline/status"
ADMIN_SETTINGS = "/v1/paceline/settings"
ADMIN_DRAIN = "/v1/paceline/drain"
ADMIN_REQUESTS = "/v1/paceline/requests"
ADMIN_STEPS = "/v1/paceline/steps"
ADMIN_RECORDING = "/v1/paceline/recording"
ADMIN_RESET_PREFIX_CACHE = "/v1/paceline/reset_prefix_cache"
