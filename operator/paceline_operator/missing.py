"""An environment without what the operator needs: one line instead of a traceback."""

OWN_PACKAGES = ("paceline_crds", "paceline_operator")


def told(error: ModuleNotFoundError) -> str:
    """What to install.

    Raises:
        ModuleNotFoundError: the same: a module of our own is missing, which no install mends.
    """
    package = (error.name or "").partition(".")[0]
    if not package or package in OWN_PACKAGES:
        raise error
    return (
        f"the operator needs the package {package}, which is not installed; install "
        "`paceline[operator]` (in a checkout: `make .venv`; `make demo` installs the engine alone)"
    )
