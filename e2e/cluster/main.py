"""Real Kubernetes clusters on this machine: up, down, list, exec, build.

Run it as `python e2e/cluster/main.py up`; see e2e/README.md.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cluster import lifecycle
from cluster.binaries import JOURNEY_PROGRAMS, program
from cluster.errors import ClusterError
from cluster.layout import Layout
from cluster.processes import State, inside


def main(argv: list[str]) -> int:
    """Run one command; the status for the shell."""
    parser = argparse.ArgumentParser(prog="main.py", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start a cluster and wait until it is ready")
    up.add_argument("--nodes", type=int, choices=(1, 2), default=1)
    down = commands.add_parser("down", help="take a cluster away, also after a crash")
    run = commands.add_parser("exec", help="run a program in the cluster's network, with kubectl")
    commands.add_parser("list", help="the clusters of this machine")
    build = commands.add_parser(
        "build", help="packages and programs that journeys need, and those named"
    )
    build.add_argument("programs", nargs="*", help="e.g. kwok, for fake nodes")
    for each in (up, down, run):
        each.add_argument("--name", default="dev", help="several live side by side (default dev)")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...")
    wanted = parser.parse_args(argv)
    try:
        if wanted.command == "up":
            lifecycle.up(Layout(wanted.name), wanted.nodes)
            _tell_how_to_use(wanted.name)
        elif wanted.command == "down":
            lifecycle.down(Layout(wanted.name))
        elif wanted.command == "exec":
            argv = wanted.argv[1:] if wanted.argv[:1] == ["--"] else wanted.argv
            _exec(Layout(wanted.name), argv or ["bash"])
        elif wanted.command == "list":
            _list()
        elif os.environ.get("KUBECONFIG"):
            sys.stderr.write("KUBECONFIG names a cluster: no node is made here\n")
            for name in (*JOURNEY_PROGRAMS, *wanted.programs):
                program(name)
        else:
            lifecycle.build((*JOURNEY_PROGRAMS, *wanted.programs))
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _tell_how_to_use(name: str) -> None:
    option = "" if name == "dev" else f" --name {name}"
    sys.stdout.write(
        f"python e2e/cluster/main.py exec{option} -- kubectl get nodes\n"
        f"PACELINE_E2E_CLUSTER_NAME={name} pytest e2e/journeys/...\n"
        f"python e2e/cluster/main.py down{option}\n"
    )


def _exec(layout: Layout, argv: list[str]) -> None:
    if not layout.kubeconfig.exists():
        raise ClusterError(f"no cluster {layout.name} is up")
    tools = program("kubectl").parent
    env = {
        **os.environ,
        "KUBECONFIG": str(layout.kubeconfig),
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    command = [*inside(layout), *argv]
    os.execvpe(command[0], command, env)


def _list() -> None:
    for name in lifecycle.names():
        state = State(Layout(name))
        dead = state.dead()
        health = f"ended: {', '.join(dead)}" if dead or not state.records else "running"
        sys.stdout.write(f"{name}\t{state.nodes} nodes\t{health}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
