"""The operator's image, built from its Containerfile on a Debian that this machine makes itself.

No public base can be pulled where journeys run, so the base is what debootstrap makes, kept in the
cache; everything above it is built each time, as its user's `podman build` does.
"""

import shutil
import tempfile
from pathlib import Path

from cluster import debian
from cluster.cache import cache_root, locked
from cluster.console import say
from cluster.host_volumes import CHECKOUT
from cluster.layout import base as clusters
from cluster.shell import run

TAG = "localhost/paceline-operator:built"
CONTAINERFILE = CHECKOUT / "images" / "operator.Containerfile"
SUITE = "bookworm"
PACKAGES = {"buildah": "buildah", "debootstrap": "debootstrap"}
PYTHON = "python3,python3-venv,ca-certificates"
_BASE = "localhost/base:1"
_LENT = ("/etc/pip.conf", "/etc/ssl/certs")
"""This machine's way to a package index, as the Containerfile's first lines say."""


def build(archive: Path) -> None:
    """Build the image and write it to a file that nodes can load."""
    debian.require(PACKAGES)
    root = _root_file_system()
    clusters().mkdir(parents=True, mode=0o711, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".image-", dir=clusters()) as scratch:
        store = ["--root", f"{scratch}/store", "--runroot", f"{scratch}/run"]
        buildah = ["nice", "buildah", *store, "--storage-driver=vfs"]
        context = Path(scratch) / "base"
        context.mkdir()
        (context / "Containerfile").write_text("FROM scratch\nADD base.tar /\n")
        shutil.copyfile(root, context / "base.tar")
        run([*buildah, "build", "--isolation=chroot", f"--tag={_BASE}", context], timeout_s=600)
        lent = [f"--volume={path}:{path}:ro" for path in _LENT if Path(path).exists()]
        say("building the operator's image")
        run(
            [*buildah, "build", "--isolation=chroot", f"--build-arg=BASE={_BASE}", *lent,
             f"--file={CONTAINERFILE}", f"--tag={TAG}", CHECKOUT],
            timeout_s=1800,
        )  # fmt: skip
        run([*buildah, "push", TAG, f"docker-archive:{archive}:{TAG}"], timeout_s=600)


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
