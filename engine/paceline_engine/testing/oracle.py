"""transformers as the oracle of the tests: the only place where its modelling code runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class Oracle:
    """A model folder in transformers, float32, eager attention, one request at a time."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Next-token logits of every position, [tokens, vocab] float32."""
        with torch.inference_mode():
            output: Tensor = self._model(torch.tensor([list(token_ids)])).logits[0]
        return output

    def greedy(self, token_ids: Sequence[int], max_tokens: int) -> list[int]:
        """The continuation that `generate` gives without sampling, end token included."""
        prompt = torch.tensor([list(token_ids)])
        with torch.inference_mode():
            output = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        continuation: list[int] = output[0, len(token_ids) :].tolist()
        return continuation
