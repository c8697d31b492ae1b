"""Each reason that a condition can have stands on the page that people look it up on."""

import re
from pathlib import Path

from paceline_crds.status import ConditionType
from paceline_operator.decide.failures import FailureReason
from paceline_operator.decide.reasons import Reason
from paceline_operator.decide.rollout import Stage
from paceline_operator.decide.settings_push import Agreement
from paceline_operator.decide.tuning.signals import SAYS_NOTHING
from paceline_operator.decide.tuning.state import Mood, Phase
from paceline_operator.resources.parse import ConfigReason

PAGE = (Path(__file__).resolve().parents[3] / "docs/conditions.md").read_text(encoding="utf-8")
UNSEEN = {Agreement.AGREED}
"""Nothing is told of it: Ready is then AllPodsReady."""


def explained() -> set[str]:
    cells = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    sentences = re.findall(r"Events of their own:.*", PAGE, re.DOTALL)
    return set(re.findall(r"`([A-Z][A-Za-z]+)`", " ".join([*cells, *sentences])))


def test_the_page_explains_every_reason_and_none_that_is_gone() -> None:
    families = (Reason, Stage, Agreement, FailureReason, ConfigReason, Mood, Phase)
    reasons = {str(reason) for family in families for reason in family if reason not in UNSEEN}
    reasons |= {str(problem) for problem in SAYS_NOTHING}
    conditions = {kind.value for kind in ConditionType} - {"Reconciling", "Stalled"}
    assert explained() == reasons | conditions
