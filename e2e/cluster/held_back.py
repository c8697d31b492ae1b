"""Parts of a cluster that do not run for a while, so that their work is not another's figure."""

import contextlib
from collections.abc import Iterator

from cluster import control_plane
from cluster.client import Cluster
from cluster.processes import State

_CONTROLLERS = {
    "controller-manager": control_plane.controller_manager,
    "proxy": control_plane.proxy,
}


@contextlib.contextmanager
def controllers(cluster: Cluster) -> Iterator[None]:
    """Run the block without what reacts to Deployments and Services: controllers and kube-proxy.

    They are ended, not paused: the API server would go on to serve watches that nobody reads.
    Started again they find what was written meanwhile, as after any restart of theirs.
    """
    assert cluster.layout is not None, "only processes of this machine can be held back"
    state = State(cluster.layout)
    for name in _CONTROLLERS:
        state.stop(name)
    try:
        yield
    finally:
        for name, command in _CONTROLLERS.items():
            state.start(name, command(cluster.layout))
