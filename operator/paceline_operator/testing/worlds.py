"""Worlds as most tests want them: the demo model, pods that end at once, everything at rest."""

from typing import Any

from paceline_operator.testing.world import World


def spec_of(**fields: Any) -> dict[str, Any]:
    """The smallest spec, with these fields beside or instead of its own."""
    return {"model": {"uri": "demo"}, "drain": {"preStopSeconds": 0}, **fields}


def settled(*, gpus_free: int | None = None, **fields: Any) -> World:
    """A world in which an LLMDeployment with these fields has come to rest."""
    world = World(spec_of(**fields), load_s=1.0, gpus_free=gpus_free)
    world.settle()
    return world
