"""The images, built from their Containerfiles on a Debian that this machine makes itself.

No public base can be pulled where journeys run, so the base is what debootstrap makes, kept in the
cache; everything above it is built each time, as its user's `podman build` does. Layers are an
overlay and the result goes straight into an archive: as copies (vfs) and by way of a local image
the engine's six gigabytes were there five times.
"""

import os
import shutil
import tempfile
from pathlib import Path

from cluster import debian
from cluster.cache import cache_root, locked
from cluster.console import say
from cluster.host_volumes import CHECKOUT
from cluster.layout import base as clusters
from cluster.shell import run

OPERATOR = "localhost/paceline-operator:built"
ENGINE = "localhost/paceline-engine:built"
_CONTAINERFILES = {OPERATOR: "operator.Containerfile", ENGINE: "engine.Containerfile"}
SUITE = "bookworm"
PACKAGES = {"buildah": "buildah", "debootstrap": "debootstrap"}
PYTHON = "python3,python3-venv,ca-certificates"
_BASE = "localhost/base:1"
_LENT = ("/etc/pip.conf", "/etc/ssl/certs")
"""This machine's way to a package index, as the Containerfiles' first lines say."""


def build(tag: str, archive: Path) -> None:
    """Build an image and write it to a file that nodes can load.

    Args:
        tag: OPERATOR or ENGINE.
        archive: gets the image; the engine's build takes twice its size besides.
    """
    debian.require(PACKAGES)
    root = _root_file_system()
    clusters().mkdir(parents=True, mode=0o711, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".image-", dir=clusters()) as scratch:
        store = ["--root", f"{scratch}/store", "--runroot", f"{scratch}/run"]
        buildah = ["nice", "buildah", *store, "--storage-driver=overlay", "build"]
        context = Path(scratch) / "base"
        context.mkdir()
        (context / "Containerfile").write_text("FROM scratch\nADD base.tar /\n")
        shutil.copyfile(root, context / "base.tar")
        run([*buildah, "--isolation=chroot", f"--tag={_BASE}", context], timeout_s=600)
        (context / "base.tar").unlink()
        lent = [f"--volume={path}:{path}:ro" for path in _LENT if Path(path).exists()]
        say(f"building {tag}")
        containerfile = CHECKOUT / "images" / _CONTAINERFILES[tag]
        run(
            [*buildah, "--isolation=chroot", "--layers=false", f"--build-arg=BASE={_BASE}", *lent,
             f"--file={containerfile}", f"--tag=docker-archive:{archive}:{tag}", CHECKOUT],
            env={**os.environ, "TMPDIR": scratch},
            timeout_s=3000,
        )  # fmt: skip


def _root_file_system() -> Path:
    """A minimal Debian with Python as a tar; made once on this machine."""
    folder = cache_root() / f"debian-{SUITE}"
    made = folder / "base.tar"
    with locked(folder / "lock", "the minimal Debian"):
        if not made.exists():
            say("making a minimal Debian (once on this machine; up to 3 min)")
            new = folder / ".new.tar"
            command = [
                "nice",
                "-n",
                "19",
                "debootstrap",
                "--variant=minbase",
                f"--include={PYTHON}",
            ]
            with tempfile.TemporaryDirectory(prefix=".debian-", dir=folder) as scratch:
                run([*command, SUITE, scratch], timeout_s=1800)
                run(["tar", "-C", scratch, "-cf", new, "."], timeout_s=600)
            new.rename(made)
    return made
