"""The model behind this server, as the HTTP process knows it: facts, tokenizer, chat template."""

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from paceline_crds import routes
from paceline_engine.core.errors import StartFailed
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.openai.errors import ApiError, unavailable
from paceline_engine.serve.step.engine_client import EngineClient, EngineInfo
from paceline_engine.serve.text.chat import ChatTemplate
from paceline_engine.serve.text.tokenizer import TextTokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedText:
    """What text routes need of a loaded model."""

    info: EngineInfo
    tokenizer: TextTokenizer
    template: ChatTemplate


class ServedModel:
    """Knows the name at once, the tokenizer as soon as the engine says where the model lies.

    Attributes:
        name: under which clients ask for it.
        created: when this server started, in Unix seconds.
    """

    def __init__(self, client: EngineClient, config: ServeConfig) -> None:
        self.name = config.model_name
        self.root = config.model
        self.created = int(time.time())
        self._client = client
        self._loaded: LoadedText | None = None
        self._lock = asyncio.Lock()

    def check_name(self, name: str | None) -> None:
        """Raise a 404 unless it is the served model's."""
        if name is not None and name != self.name:
            raise ApiError(
                404,
                f"the model {name[:128]!r} is not served here; {routes.MODELS} lists {self.name!r}",
                param="model",
                code="model_not_found",
            )

    def prepare(self, info: EngineInfo) -> None:
        """Read tokenizer and template before the engine is called ready.

        Raises:
            StartFailed: UnsupportedModel, they cannot be read: no request could be served.
        """
        self._loaded = loaded = _load(info)
        num_tokens = loaded.tokenizer.tokenizer.get_vocab_size()
        if num_tokens > info.vocab_size:
            log.warning(
                "the tokenizer knows %d tokens, the model %d: a text with one of the others is "
                "refused with 400",
                num_tokens,
                info.vocab_size,
            )

    async def text(self) -> LoadedText:
        """Tokenizer and template, read once, beside the event loop.

        Raises:
            ApiError: 503 while the model loads, or when it cannot be loaded.
        """
        if self._loaded is not None:
            return self._loaded
        info = self._client.info
        if info is None:
            startup = self._client.startup
            raise unavailable(
                f"the model is not loaded yet ({startup.phase}); {startup.message or 'try again'}",
                retry_after_s=5,
            )
        async with self._lock:
            if self._loaded is None:
                try:
                    self._loaded = await asyncio.to_thread(_load, info)
                except StartFailed as error:
                    raise unavailable(str(error), retry_after_s=60) from error
        return self._loaded


def _load(info: EngineInfo) -> LoadedText:
    folder = Path(info.model_dir)
    return LoadedText(
        info=info, tokenizer=TextTokenizer.load(folder), template=ChatTemplate.load(folder)
    )
