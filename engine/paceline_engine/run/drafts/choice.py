"""Which proposer the settings ask for."""

from paceline_crds.settings import EngineSettings, SpeculativeMethod
from paceline_engine.run.batch import Batch
from paceline_engine.run.drafts.ngram import NgramProposer
from paceline_engine.run.drafts.proposer import Proposer


def proposer_for(settings: EngineSettings, batch: Batch) -> Proposer | None:
    """The proposer of `speculativeMethod`, None if it is None."""
    if settings.speculative_method is SpeculativeMethod.NGRAM:
        return NgramProposer(
            batch, settings.speculative_min_lookup, settings.speculative_max_lookup
        )
    return None


def is_built(method: SpeculativeMethod) -> bool:
    """Whether this engine has the proposer."""
    return method in {SpeculativeMethod.NONE, SpeculativeMethod.NGRAM}
