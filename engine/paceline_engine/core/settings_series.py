"""Settings as metrics: numbers under one gauge, words as labels, and the facts of the KV cache."""

from paceline_crds import metrics
from paceline_crds.metrics import METRICS
from paceline_crds.quantities import number_of
from paceline_crds.settings import EngineSettings
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.snapshot import Labels


def series(settings: EngineSettings, limits: EngineLimits) -> dict[str, dict[Labels, float]]:
    """Families whose values are the settings in force."""
    words = tuple(str(getattr(settings, name)) for name in METRICS[metrics.SETTINGS_INFO].labels)
    cache_facts = {
        "block_size": limits.block_size,
        "num_gpu_blocks": limits.num_blocks,
        "cache_dtype": settings.kv_cache_dtype,
        "enable_prefix_caching": settings.prefix_caching,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
    }
    facts = tuple(str(cache_facts[label]) for label in METRICS[metrics.CACHE_CONFIG].labels)
    return {
        metrics.SETTING: numbers(settings),
        metrics.SETTINGS_INFO: {words: 1.0},
        metrics.CACHE_CONFIG: {facts: 1.0},
    }


def numbers(settings: EngineSettings) -> dict[Labels, float]:
    """(camelCase name,) -> value of every pinned setting that is a number, a share or a switch."""
    found: dict[Labels, float] = {}
    for name, value in settings.on_border().items():
        is_share = isinstance(value, str) and value[:1].isdigit()  # decimals and quantities
        if is_share or isinstance(value, bool | int | float):
            found[(name,)] = float(number_of(value) if isinstance(value, str) else value)
    return found
