"""What the engine does about settings that this release does not build: refuse, and name them."""

from paceline_crds.settings import EngineSettings
from paceline_crds.unsupported import unsupported
from paceline_engine.core.errors import SettingRefused, StartFailed


def refuse_at_start(settings: EngineSettings) -> None:
    """End a start that would ignore a setting.

    Raises:
        StartFailed: InvalidSettings, naming every field at fault.
    """
    if found := unsupported(settings):
        raise StartFailed("InvalidSettings", "; ".join(message for _, message in found))


def refuse_change(settings: EngineSettings) -> None:
    """End a live change to a value that this release does not build.

    Raises:
        SettingRefused: 400, naming the first field at fault.
    """
    if found := unsupported(settings):
        field, message = found[0]
        raise SettingRefused(400, field, message)
