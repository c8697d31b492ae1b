"""Which release this is."""

from importlib import metadata

FROM_SOURCE = "0+source"


def version() -> str:
    """Version of the installed package; FROM_SOURCE in a tree that is not installed."""
    try:
        return metadata.version("paceline")
    except metadata.PackageNotFoundError:
        return FROM_SOURCE
