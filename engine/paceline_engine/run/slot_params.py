"""Sampling parameters by slot, as arrays, with one word of flags for what a slot needs.

A slot whose flags are zero is sampled by a plain argmax; the sampler looks at nothing else then.
"""

import numpy as np

from paceline_engine.core.arrays import Bool, Float32, Int32, Int64, UInt64
from paceline_engine.core.request import SamplingParams
from paceline_engine.run.noise import request_key

RANDOM = 1
TRUNCATED = 2
MIN_P = 4
PENALTIES = 8
BIAS = 16
ALLOWED = 32
BAD_WORDS = 64
MIN_TOKENS = 128
LOGPROBS = 256
PROMPT_LOGPROBS = 512


class SlotParams:
    """Arrays by slot; dictionaries only for the rare parameters that are lists.

    Attributes:
        speculates: [slots] bool, drafts may be proposed.
        flags: [slots] sum of the constants above.
        keys: [slots] uint64, the request's key of the noise (seed and choice).
        num_logprobs, num_prompt_logprobs: [slots], how many of the best are asked for.
        bias: slot -> (token ids, values).
        allowed: slot -> token ids.
        bad_words: slot -> token sequences.
        stop_ids: slot -> tokens that may not come before `min_tokens` outputs.
    """

    def __init__(
        self, slots: int, vocab_size: int, eos_token_ids: tuple[int, ...], engine_seed: int
    ) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._engine_seed = engine_seed
        self.flags: Int32 = np.zeros(slots, dtype=np.int32)
        self.speculates: Bool = np.zeros(slots, dtype=np.bool_)
        self.keys: UInt64 = np.zeros(slots, dtype=np.uint64)
        self.temperature: Float32 = np.zeros(slots, dtype=np.float32)
        self.top_k: Int64 = np.zeros(slots, dtype=np.int64)
        self.top_p: Float32 = np.ones(slots, dtype=np.float32)
        self.min_p: Float32 = np.zeros(slots, dtype=np.float32)
        self.repetition: Float32 = np.ones(slots, dtype=np.float32)
        self.presence: Float32 = np.zeros(slots, dtype=np.float32)
        self.frequency: Float32 = np.zeros(slots, dtype=np.float32)
        self.min_tokens: Int64 = np.zeros(slots, dtype=np.int64)
        self.num_logprobs: Int64 = np.zeros(slots, dtype=np.int64)
        self.num_prompt_logprobs: Int64 = np.zeros(slots, dtype=np.int64)
        self.bias: dict[int, tuple[Int64, Float32]] = {}
        self.allowed: dict[int, Int64] = {}
        self.bad_words: dict[int, tuple[tuple[int, ...], ...]] = {}
        self.stop_ids: dict[int, Int64] = {}

    def add(self, slot: int, request_id: int, params: SamplingParams) -> None:
        """Fill a slot; whatever was there is gone."""
        self._forget_lists(slot)
        # top_k of 0 (or of the whole vocabulary) keeps all.
        top_k = params.top_k if 0 < params.top_k < self._vocab_size else self._vocab_size
        self.speculates[slot] = params.speculates
        self.temperature[slot] = params.temperature
        self.top_k[slot] = top_k
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.repetition[slot] = params.repetition_penalty
        self.presence[slot] = params.presence_penalty
        self.frequency[slot] = params.frequency_penalty
        self.min_tokens[slot] = params.min_tokens
        self.num_logprobs[slot] = params.logprobs or 0
        self.num_prompt_logprobs[slot] = params.prompt_logprobs or 0
        seed = params.seed if params.seed is not None else (self._engine_seed, request_id)
        self.keys[slot] = request_key(seed, params.choice)
        if params.logit_bias:
            ids, values = zip(*params.logit_bias, strict=True)
            self.bias[slot] = (np.array(ids, np.int64), np.array(values, np.float32))
        if params.allowed_token_ids is not None:
            self.allowed[slot] = np.array(params.allowed_token_ids, np.int64)
        if params.bad_words:
            self.bad_words[slot] = params.bad_words
        if params.min_tokens > 0:
            own = () if params.ignore_eos else self._eos_token_ids
            self.stop_ids[slot] = np.array([*own, *params.stop_token_ids], np.int64)
        self.flags[slot] = _flags(params, top_k < self._vocab_size)

    def remove(self, slots: Int32) -> None:
        """Clear slots."""
        listed = slots[self.flags[slots] & (BIAS | ALLOWED | BAD_WORDS | MIN_TOKENS) != 0]
        self.flags[slots] = 0
        for slot in listed.tolist():
            self._forget_lists(slot)

    def _forget_lists(self, slot: int) -> None:
        for lists in (self.bias, self.allowed, self.bad_words, self.stop_ids):
            lists.pop(slot, None)


def _flags(params: SamplingParams, has_top_k: bool) -> int:
    penalties = (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )
    wanted = {
        PENALTIES: penalties,
        BIAS: bool(params.logit_bias),
        ALLOWED: params.allowed_token_ids is not None,
        BAD_WORDS: bool(params.bad_words),
        MIN_TOKENS: params.min_tokens > 0,
        LOGPROBS: params.logprobs is not None,
        PROMPT_LOGPROBS: params.prompt_logprobs is not None,
    }
    if params.temperature > 0:
        wanted |= {
            RANDOM: True,
            TRUNCATED: has_top_k or params.top_p < 1.0,
            MIN_P: params.min_p > 0.0,
        }
    return sum(flag for flag, is_wanted in wanted.items() if is_wanted)
