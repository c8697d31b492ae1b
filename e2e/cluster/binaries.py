"""The programs of a real Kubernetes, built from the Go module proxy and kept in a cache folder.

No prebuilt download is used: the Go proxy is the one source that every development machine has, and
its checksum database vouches for what comes from it. Each group of programs has a module of its
own, since one module for all would force one version of every shared dependency on them.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from cluster.cache import cache_root, locked
from cluster.console import say
from cluster.errors import CommandFailed, MissingTool

KUBERNETES = "v1.37.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Programs that come from one Go module.

    Attributes:
        module: path of the Go module.
        version: its version.
        packages: program name to Go package.
        variables: Go variables set at link time, so that clients see a real version.
        minutes: a first build on two cores takes about that long, per program.
        staging: the module replaces parts of itself by folders; take published ones instead.
    """

    module: str
    version: str
    packages: dict[str, str]
    variables: dict[str, str] = field(default_factory=dict)
    minutes: dict[str, float] = field(default_factory=dict)
    staging: bool = False

    @property
    def ldflags(self) -> str:
        """Flags of the linker: no symbol table, and the variables."""
        return " ".join(["-s", "-w", *(f"-X {name}={v}" for name, v in self.variables.items())])

    @property
    def key(self) -> str:
        """Names the cache folder: changes with everything that changes the result."""
        recipe = json.dumps(
            [self.module, self.version, self.packages, self.ldflags, os.uname().machine]
        )
        return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def _kubernetes() -> Group:
    tools = {
        "kube-apiserver": 9.0,
        "kube-controller-manager": 2.5,
        "kube-scheduler": 0.7,
        "kubelet": 0.7,
        "kube-proxy": 0.5,
        "kubectl": 0.5,
    }
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    version = "k8s.io/component-base/version"
    return Group(
        module="k8s.io/kubernetes",
        version=KUBERNETES,
        packages={tool: f"k8s.io/kubernetes/cmd/{tool}" for tool in tools},
        variables={
            f"{version}.gitVersion": KUBERNETES,
            f"{version}.gitMajor": major,
            f"{version}.gitMinor": minor,
        },
        minutes=tools,
        staging=True,
    )


GROUPS = (
    _kubernetes(),
    Group(
        module="github.com/coredns/coredns",
        version="v1.14.6",
        packages={"coredns": "github.com/coredns/coredns"},
        minutes={"coredns": 3},
    ),
    Group(
        module="helm.sh/helm/v4",
        version="v4.3.1",
        packages={"helm": "helm.sh/helm/v4/cmd/helm"},
        variables={"helm.sh/helm/v4/internal/version.version": "v4.3.1"},
        minutes={"helm": 4},
    ),
    Group(
        module="sigs.k8s.io/kwok",
        version="v0.8.0",
        packages={"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
        minutes={"kwok": 2.5},
    ),
)
NODE_PROGRAMS = (*GROUPS[0].packages, "coredns")
JOURNEY_PROGRAMS = ("helm",)
"""What journeys need besides; built before them, since a build takes longer than a journey may."""


@functools.cache
def program(name: str) -> Path:
    """The path of a program, built now if the cache does not have it.

    Raises:
        MissingTool: Go is not installed, or no group has a program of that name.
        CommandFailed: the build failed.
    """
    group = next((group for group in GROUPS if name in group.packages), None)
    if group is None:
        known = ", ".join(sorted(tool for group in GROUPS for tool in group.packages))
        raise MissingTool(f"no program named {name} can be built here; known: {known}")
    folder = cache_root() / f"{name_of(group)}-{group.version}-{group.key}"
    built = folder / name
    if built.exists():
        return built
    with locked(folder / "lock", f"the build of {group.module}"):
        if not built.exists():
            _build(group, name, folder)
    return built


def module_folder(name: str) -> Path:
    """The sources of a program's module, for files that lie beside its code."""
    built = program(name)
    group = next(group for group in GROUPS if name in group.packages)
    listed = _go(["list", "-m", "-f", "{{.Dir}}", group.module], built.parent / "module")
    return Path(listed.strip())


def name_of(group: Group) -> str:
    """A short name for the cache folder."""
    parts = [part for part in group.module.split("/") if not re.fullmatch(r"v\d+", part)]
    return parts[-1]


def _build(group: Group, name: str, folder: Path) -> None:
    if shutil.which("go") is None:
        raise MissingTool(
            f"{name} is built from source and needs Go 1.21 or newer, and there is no `go` on the "
            "path; install it from https://go.dev/dl (Debian 12's own is too old)"
        )
    minutes = group.minutes.get(name, 1)
    say(f"building {name} {group.version} (once on this machine; up to {minutes:g} min)")
    started = time.monotonic()
    module = folder / "module"
    if not (module / "ready").exists():
        _make_module(group, module)
    target = folder / f".{name}.new"
    _go(["build", "-trimpath", "-ldflags", group.ldflags, "-o", str(target), group.packages[name]],
        module)  # fmt: skip
    target.rename(folder / name)
    say(f"built {name} in {time.monotonic() - started:.0f} s")


def _make_module(group: Group, folder: Path) -> None:
    """A module that requires the group's, with all its dependencies resolved."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    lines = [
        "module paceline.dev/e2e",
        "",
        "go 1.26",
        "",
        f"require {group.module} {group.version}",
    ]
    (folder / "go.mod").write_text("\n".join([*lines, ""]))
    if group.staging:
        # `replace k8s.io/api => ./staging/...` in Kubernetes' own go.mod counts only in its own
        # tree; the same code is published as k8s.io/api v0.x.y, x and y those of Kubernetes.
        answer = json.loads(
            _go(["mod", "download", "-json", f"{group.module}@{group.version}"], folder)
        )
        published = "v0." + group.version.split(".", 1)[1]
        own = Path(answer["GoMod"]).read_text()
        lines += [
            f"replace {part} => {part} {published}"
            for part in re.findall(r"^\s*(?:replace )?(\S+) => \./staging/", own, re.MULTILINE)
        ]
        (folder / "go.mod").write_text("\n".join([*lines, ""]))
    _go(["get", "-tool", *group.packages.values()], folder)
    (folder / "ready").touch()


def _go(arguments: list[str], folder: Path) -> str:
    """Run Go at low priority: a build takes minutes and the machine has other work."""
    done = subprocess.run(
        ["nice", "-n", "19", "go", *arguments],
        cwd=folder,
        env={**os.environ, "GOWORK": "off", "GOFLAGS": "-buildvcs=false"},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise CommandFailed(f"go {' '.join(arguments)} failed in {folder}:\n{done.stderr[-4000:]}")
    return done.stdout
