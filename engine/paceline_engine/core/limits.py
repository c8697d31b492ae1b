"""What an engine has, once its model is loaded and its memory is planned."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Facts that the scheduler needs and that do not change while the process lives.

    Attributes:
        num_blocks: KV blocks in the pool, the null block 0 included.
        block_size: tokens in a block.
        max_model_len: longest request in tokens, already capped to (num_blocks - 1) * block_size.
        max_slots: most running requests that buffers are made for (bootMaxNumSeqs).
        max_step_tokens: most tokens of a step that buffers are made for (bootMaxNumBatchedTokens).
        vocab_size: token ids are in [0, vocab_size).
        eos_token_ids: the model's own end tokens.
        cache_root: what the chain of block hashes starts from: model, revision, dtype, KV dtype
            and scales, parallel layout, already digested.
        num_host_blocks: KV blocks that the host tier holds; 0: there is none.
        block_bytes: of one KV block, all layers together; 0 where nobody counts bytes.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    max_slots: int
    max_step_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    cache_root: bytes
    num_host_blocks: int = 0
    block_bytes: int = 0
