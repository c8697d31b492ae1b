"""How checkpoints of draft heads are written: names, shapes, and what of them is not built.

EAGLE: a folder of its own, `fc` over the token's embedding and the target's state, then a decoder
layer whose input is not normed; its output takes the place of the target's state behind the final
norm. Multi-token prediction (MTP): layers of the target's own checkpoint behind its last one, with
norms of both inputs and of the output; DeepSeek-V3 and GLM-4.5 name them alike, MiMo otherwise.

Sources: EAGLE, arXiv:2401.15077, and its published weights; DeepSeek-V3, arXiv:2412.19437, section
2.2, and the README of its weights; MiMo, arXiv:2505.07608.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline_engine.core.errors import StartFailed
from paceline_engine.model.config import ModelConfig
from paceline_engine.model.families import config_of, raw_config
from paceline_engine.model.weights import mtp_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFormat:
    """Names of a head's tensors, and the order in which they compute.

    Attributes:
        fuse: prefix of the projection [hidden, 2 * hidden] of both inputs.
        layer: prefix of the decoder layer.
        embed_norm, hidden_norm: names of the norms before the projection; None: none.
        out_norm: of the norm behind the layer; None: none.
        is_hidden_first: the projection's columns are (state, embedding), else the other way round.
        feeds_normed: what goes back as the next guess's state is behind `out_norm`.
        has_input_norm: the layer norms its input.
        draft_vocabulary: name of the tokens that it knows, if it does not know all.
        copies: names of tensors that equal the target's own and are not read.
        prefix: of all that belongs to the head; what is neither read nor a copy is refused.
    """

    fuse: str
    layer: str
    embed_norm: str | None = None
    hidden_norm: str | None = None
    out_norm: str | None = None
    is_hidden_first: bool = False
    feeds_normed: bool = False
    has_input_norm: bool = True
    draft_vocabulary: str = "d2t"
    copies: tuple[str, ...] = ()
    prefix: str = ""


EAGLE = HeadFormat(
    fuse="fc.",
    layer="layers.0.",
    has_input_norm=False,
    copies=("embed_tokens.weight", "lm_head.weight"),
)


def mtp_format(config: ModelConfig) -> HeadFormat:
    """Of the first MTP layer of a target."""
    prefix = mtp_prefix(config, 0)
    if config.family == "mimo":
        return HeadFormat(
            fuse=f"{prefix}input_proj.",
            layer=prefix,
            embed_norm=f"{prefix}token_layernorm.weight",
            hidden_norm=f"{prefix}hidden_layernorm.weight",
            out_norm=f"{prefix}final_layernorm.weight",
            is_hidden_first=True,
            feeds_normed=True,
            draft_vocabulary=f"{prefix}d2t",
            prefix=prefix,
        )
    return HeadFormat(
        fuse=f"{prefix}eh_proj.",
        layer=prefix,
        embed_norm=f"{prefix}enorm.weight",
        hidden_norm=f"{prefix}hnorm.weight",
        out_norm=f"{prefix}shared_head.norm.weight",
        draft_vocabulary=f"{prefix}d2t",
        copies=(f"{prefix}embed_tokens.weight", f"{prefix}shared_head.head.weight"),
        prefix=prefix,
    )


def mtp_config(target: ModelConfig) -> ModelConfig:
    """Sizes of a target's MTP layer: those of its other layers."""
    return replace(
        target, num_layers=1, sliding_windows=(target.sliding_windows[-1],), num_mtp_layers=0
    )


def refuse_without_mtp(target: ModelConfig, folder: Path) -> None:
    """End the start of an engine that cannot draft as it is told to.

    Raises:
        StartFailed: InvalidSettings: the target has no MTP layer.
    """
    if not target.num_mtp_layers:
        raise StartFailed(
            "InvalidSettings",
            f"speculativeMethod Mtp needs a model with layers for it, but config.json of {folder} "
            "has no num_nextn_predict_layers; name another method, or train such a layer with "
            "`paceline head train --form Mtp`",
        )


def eagle_config(folder: Path, target: ModelConfig) -> ModelConfig:
    """Sizes of an EAGLE head, which must fit its target.

    Raises:
        StartFailed: UnsupportedModel: another kind of head; InvalidSettings: of another target.
    """
    raw = raw_config(folder)
    if raw.get("model_type") == "eagle":  # as converted for vLLM
        raw = raw.get("model") or {}
    _refuse_other_kinds(raw, folder)
    config = config_of(raw, folder)
    wanted = {"hidden_size": target.hidden_size, "vocab_size": target.vocab_size}
    for name, value in wanted.items():
        if getattr(config, name) != value:
            raise StartFailed(
                "InvalidSettings",
                f"speculativeModel {folder} is the head of another model: its {name} is "
                f"{getattr(config, name)}, the served model's is {value}",
            )
    return config


def _refuse_other_kinds(raw: Mapping[str, Any], folder: Path) -> None:
    kinds = [str(name) for name in raw.get("architectures") or ()]
    if any("eagle3" in kind.lower() for kind in kinds) or "eagle_config" in raw:
        raise _unsupported(
            f"{folder} is an EAGLE-3 head ({', '.join(kinds)}), which reads three states of the "
            "target; built are heads of EAGLE and EAGLE-2, which read the last one"
        )
    if "speculators_model_type" in raw or "speculators_config" in raw:
        raise _unsupported(
            f"{folder} is in the format of speculators; built is that of the EAGLE authors"
        )
    layers = raw.get("num_hidden_layers")
    if layers != 1:
        raise _unsupported(f"a head of {layers} decoder layers ({folder}); built is 1")


def _unsupported(what: str) -> StartFailed:
    return StartFailed("UnsupportedModel", f"this engine does not take drafts from {what}")
