"""Live settings: which revision is wanted, what each ConfigMap says, which pods need a push.

The revision only grows and is above everything ever seen, so neither a restored object nor a
person's curl blocks the operator. Order of a change: status, ConfigMaps, a PATCH to each pod, read
back, applied to status. Pods of an old template get clamped values and do not count.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from paceline_crds.settings import border_name, knobs
from paceline_operator.decide.actions import PatchSettings
from paceline_operator.decide.observed import EngineReading
from paceline_operator.decide.pod_view import PodView
from paceline_operator.render import settings_map
from paceline_operator.render.settings_map import Recorded, Values
from paceline_operator.resources.overlay import text_of

AGREEMENT_S = 60
"""Counted pods that do not agree after so long are reported, and a tuner's change is taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What was wanted last, and what ConfigMaps say.

    Attributes:
        revision: from status, 0 if it does not say.
        texts: camelCase name -> value as status shows it.
        applied: revision that all counted pods had.
        maps: template hash -> its ConfigMap.
    """

    revision: int = 0
    texts: Mapping[str, str]
    applied: int = 0
    maps: Mapping[str, Recorded]


class Agreement(StrEnum):
    """Whether counted pods have the wanted settings."""

    AGREED = "Agreed"
    PENDING = "SettingsPending"
    OVERDUE = "SettingsNotAgreed"
    UNREACHABLE = "AdminUnreachable"
    NOBODY = "NoPod"


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """The decision.

    Attributes:
        revision: wanted.
        applied: the last one that all counted pods read back.
        is_new: the revision was raised now.
        maps: template hash -> what its ConfigMap has to say.
        patches: for pods whose read-back differs.
        pending, unreachable: names of counted pods.
    """

    revision: int
    applied: int
    is_new: bool
    maps: Mapping[str, Recorded]
    patches: tuple[PatchSettings, ...]
    pending: tuple[str, ...]
    unreachable: tuple[str, ...]
    num_agreed: int

    def agreement(self, since: float, now: float) -> Agreement:
        """Whether all agree.

        Args:
            since: when the newest wanted value came into force.
            now: seconds since the epoch.
        """
        if self.unreachable:
            return Agreement.UNREACHABLE
        if self.pending:
            return Agreement.OVERDUE if now - since > AGREEMENT_S else Agreement.PENDING
        return Agreement.AGREED if self.num_agreed else Agreement.NOBODY


def decide(
    wanted_hash: str,
    values: Values,
    boot: Mapping[str, Mapping[str, int]],
    pods: Iterable[PodView],
    known: Known,
    engine_decided: frozenset[str] = frozenset(),
) -> Push:
    """The next revision and what has to be told to whom.

    Args:
        wanted_hash: of the wanted template; its pods count.
        values: every live setting as wanted, camelCase.
        boot: template hash -> boot maxima (camelCase); its keys are the hashes that exist.
        pods: of all hashes.
        known: what was recorded before.
        engine_decided: snake_case names that nobody sets: pods go back to their own start value.
    """
    asked = [pod for pod in pods if pod.is_active and not pod.has_begun_to_drain]
    told = {pod.name: _values_for(pod, values, boot, engine_decided) for pod in asked}
    revision = _revision(wanted_hash, values, boot, asked, told, known)
    maps = {
        digest: Recorded(revision=revision, values=settings_map.clamped(values, limits))
        for digest, limits in boot.items()
    }
    patches, pending, unreachable, num_agreed = [], [], [], 0
    for pod in asked:
        reading = pod.reading
        counts = pod.hash == wanted_hash
        if reading is None or not reading.is_reachable or reading.revision is None:
            if counts and pod.can_serve:
                unreachable.append(pod.name)
            continue
        changes = _differing(told[pod.name], reading)
        if reading.revision == revision and not changes:
            num_agreed += counts
            continue
        if counts:
            pending.append(pod.name)
        patches.append(
            PatchSettings(pod=pod.name, pod_uid=pod.uid, changes=changes, revision=revision)
        )
    all_agree = num_agreed > 0 and not pending and not unreachable
    return Push(
        revision=revision,
        applied=revision if all_agree else min(known.applied, revision),
        is_new=revision != known.revision,
        maps=maps,
        patches=tuple(patches),
        pending=tuple(pending),
        unreachable=tuple(unreachable),
        num_agreed=num_agreed,
    )


def _revision(
    wanted_hash: str,
    values: Values,
    boot: Mapping[str, Mapping[str, int]],
    asked: Iterable[PodView],
    told: Mapping[str, Values],
    known: Known,
) -> int:
    readings = [
        (pod, pod.reading)
        for pod in asked
        if pod.reading is not None and pod.reading.is_reachable and pod.reading.revision is not None
    ]
    seen = [known.revision, *(item.revision for item in known.maps.values())]
    seen += [reading.revision or 0 for _, reading in readings]
    next_one = 1 + max(seen)
    revision = known.revision
    if revision == 0:
        recorded = known.maps.get(wanted_hash)
        clamped = settings_map.clamped(values, boot.get(wanted_hash, {}))
        if recorded is None or dict(recorded.values) != clamped:
            return next_one
        revision = recorded.revision
    elif any(known.texts.get(name) != text_of(value) for name, value in values.items()):
        return next_one
    if max(seen) > revision:
        return next_one
    contradicted = any(
        reading.revision == revision and _differing(told[pod.name], reading)
        for pod, reading in readings
    )
    return next_one if contradicted else revision


def _values_for(
    pod: PodView,
    values: Values,
    boot: Mapping[str, Mapping[str, int]],
    engine_decided: frozenset[str],
) -> dict[str, Any]:
    """What this pod should have: clamped to its own maxima, its own start values included."""
    said = pod.reading.settings if pod.reading and pod.reading.is_reachable else {}
    limits = dict(boot.get(pod.hash, {}))
    told = dict(values)
    for name, knob in knobs().items():
        label = border_name(knob.boot_maximum) if knob.boot_maximum else ""
        if not label:
            continue
        limit = said.get(label)
        if not isinstance(limit, int):
            continue
        limits.setdefault(label, limit)
        if name in engine_decided and knob.boot_maximum in engine_decided:
            # An engine derives a boot maximum of twice its own start value.
            told[border_name(name)] = limit // 2
    return settings_map.clamped(told, limits)


def _differing(told: Values, reading: EngineReading) -> dict[str, Any]:
    """Values that the engine knows by name and has otherwise."""
    return {
        name: value
        for name, value in told.items()
        if name in reading.settings and reading.settings[name] != value
    }
