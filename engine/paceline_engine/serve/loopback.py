"""Whether an address or a name is of this machine alone."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host names this machine: a name of another site that points here does not."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
