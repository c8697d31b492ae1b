"""Which proposer the settings ask for."""

from paceline_crds.settings import SpeculativeMethod
from paceline_engine.run.batch import Batch
from paceline_engine.run.drafts.draft_model import DraftModelProposer
from paceline_engine.run.drafts.head import HeadProposer
from paceline_engine.run.drafts.head_load import LoadedHead
from paceline_engine.run.drafts.ngram import NgramProposer
from paceline_engine.run.drafts.proposer import Proposer
from paceline_engine.run.drafts.suffix import SuffixProposer
from paceline_engine.run.load import LoadedModel
from paceline_engine.run.sampler import Sampler


def proposer_for(loaded: LoadedModel, batch: Batch, sampler: Sampler) -> Proposer | None:
    """The proposer of `speculativeMethod`, None if it is None.

    Args:
        loaded: with the weights and KV layers of a proposer that computes.
        batch: that it reads.
        sampler: of the target, by which a model draws its guesses.
    """
    settings, limits = loaded.settings, loaded.limits
    if settings.speculative_method is SpeculativeMethod.NGRAM:
        return NgramProposer(
            batch, settings.speculative_min_lookup, settings.speculative_max_lookup
        )
    if settings.speculative_method is SpeculativeMethod.SUFFIX:
        return SuffixProposer(batch)
    max_drafts = settings.boot_max_speculative_num_tokens or 0
    if isinstance(loaded.drafts, LoadedHead):
        return HeadProposer(
            loaded.drafts,
            batch,
            sampler,
            num_blocks=limits.num_blocks,
            max_drafts=max_drafts,
            num_host_blocks=limits.num_host_blocks,
        )
    if loaded.drafts is not None:
        return DraftModelProposer(
            loaded.drafts,
            batch,
            sampler,
            num_blocks=limits.num_blocks,
            max_drafts=max_drafts,
            max_step_tokens=limits.max_step_tokens,
            num_host_blocks=limits.num_host_blocks,
        )
    return None
