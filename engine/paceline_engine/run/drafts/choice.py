"""Which proposer the settings ask for."""

from paceline_crds.settings import EngineSettings, SpeculativeMethod
from paceline_engine.run.batch import Batch
from paceline_engine.run.drafts.ngram import NgramProposer
from paceline_engine.run.drafts.proposer import Proposer
from paceline_engine.run.drafts.suffix import SuffixProposer


def proposer_for(settings: EngineSettings, batch: Batch) -> Proposer | None:
    """The proposer of `speculativeMethod`, None if it is None."""
    if settings.speculative_method is SpeculativeMethod.NGRAM:
        return NgramProposer(
            batch, settings.speculative_min_lookup, settings.speculative_max_lookup
        )
    if settings.speculative_method is SpeculativeMethod.SUFFIX:
        return SuffixProposer(batch)
    return None
