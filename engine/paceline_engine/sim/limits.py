"""What a simulated engine has."""

from paceline_crds.settings import EngineSettings
from paceline_engine.core.limits import EngineLimits
from paceline_engine.sim.requests import END_TOKEN

_VOCAB_SIZE = 1 << 30  # token ids of simulated prompts are serial numbers


def limits_of(
    settings: EngineSettings, num_blocks: int | None = None, *, max_model_len: int = 131_072
) -> EngineLimits:
    """Limits as an engine that starts with these settings would have them.

    Args:
        settings: `numKvBlocks` counts unless `num_blocks` is given; boot maxima as at a start.
        num_blocks: KV blocks, block 0 included.
        max_model_len: of the model, unless the settings have one; capped to what the blocks hold.

    Raises:
        ValueError: neither says how many blocks there are.
    """
    blocks = num_blocks or settings.num_kv_blocks
    if blocks is None:
        raise ValueError("the number of KV blocks must be known; set numKvBlocks")
    booted = settings.booted()
    longest = (blocks - 1) * settings.block_size
    return EngineLimits(
        num_blocks=blocks,
        block_size=settings.block_size,
        max_model_len=min(settings.max_model_len or max_model_len, longest),
        max_slots=booted.boot_max_num_seqs or booted.max_num_seqs,
        max_step_tokens=booted.boot_max_num_batched_tokens or booted.max_num_batched_tokens,
        vocab_size=_VOCAB_SIZE,
        eos_token_ids=(END_TOKEN,),
        cache_root=b"simulated",
    )
