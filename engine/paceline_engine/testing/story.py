"""A recorder driven by hand, in the shortest words for what happens to requests."""

from typing import Any

import numpy as np

from paceline_crds.settings import EngineSettings
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.request import Finished, FinishReason, Request, SamplingParams
from paceline_engine.core.snapshot import StatsSnapshot
from paceline_engine.core.stats import Recorder

LIMITS = EngineLimits(
    num_blocks=11,
    block_size=16,
    max_model_len=160,
    max_slots=4,
    max_step_tokens=64,
    vocab_size=100,
    eos_token_ids=(2,),
    cache_root=b"",
)


class Story:
    """A recorder and the shortest words for what happens to requests."""

    def __init__(self, **settings: Any) -> None:
        self.recorder = Recorder(EngineSettings(**settings), LIMITS)
        self.prompts: dict[int, int] = {}

    def arrive(self, request_id: int, now: float = 0.0, prompt: int = 5, **fields: Any) -> None:
        """A request comes in; `fields` are the request's."""
        self.prompts[request_id] = prompt
        self.recorder.request_arrived(
            Request(
                request_id=request_id,
                external_id=str(request_id),
                prompt_token_ids=(1,) * prompt,
                params=SamplingParams(max_tokens=20),
                arrival_s=now,
                **fields,
            )
        )

    def admit(self, request_id: int, slot: int, computed: int = 0, now: float = 0.0) -> None:
        """It takes a slot."""
        self.recorder.request_admitted(request_id, slot, computed, now)

    def tokens(self, now: float, **counts: int) -> None:
        """`tokens(1.0, s0=2, s3=1)`: slot 0 got two tokens, slot 3 one."""
        slots = np.array([int(name[1:]) for name in counts], dtype=np.int32)
        self.recorder.tokens(slots, np.array(list(counts.values()), dtype=np.int32), now)

    def finish(
        self, request_id: int, outputs: int, now: float, reason: FinishReason = FinishReason.STOP
    ) -> None:
        """It ends with so many outputs."""
        self.recorder.request_finished(
            Finished(
                request_id=request_id,
                reason=reason,
                num_prompt_tokens=self.prompts[request_id],
                num_output_tokens=outputs,
            ),
            now,
        )

    def run(
        self, request_id: int, times: list[float], arrival: float = 0.0, computed: int = 0
    ) -> None:
        """A request alone in slot 0 that gets a token at each of these times, then stops."""
        self.arrive(request_id, arrival)
        self.admit(request_id, 0, computed, now=arrival)
        for now in times:
            self.tokens(now, s0=1)
        self.finish(request_id, len(times), times[-1])

    @property
    def stats(self) -> StatsSnapshot:
        """All of it at second 100."""
        return self.recorder.snapshot(100.0)

    def count(self, name: str) -> int:
        """Observations of a histogram."""
        return self.stats.histogram(name).count

    def total(self, name: str) -> float:
        """Sum of a histogram."""
        return self.stats.histogram(name).sum
