"""A model's name becomes a folder on this machine, made once, whole or not at all."""

from pathlib import Path

import pytest

from paceline_engine.core.errors import StartFailed
from paceline_engine.model import store
from paceline_engine.model.made_once import made_once
from paceline_engine.testing.imports import imported_by
from paceline_engine.testing.tiny_model import TinyModel, write_tiny_model


def quiet(phase: str, share: float) -> None:
    del phase, share


def test_a_folder_is_itself_by_path_and_by_url(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "a model")
    assert store.resolve(str(folder), cache_dir=tmp_path, progress=quiet) == folder
    url = f"file://{tmp_path}/a%20model"
    assert store.resolve(url, cache_dir=tmp_path, progress=quiet) == folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("uri", "reason", "named"),
    [
        ("/no/such/model", "DownloadFailed", "there is no model"),
        ("~nobody-of-this-name/model", "DownloadFailed", "no model at ~nobody-of-this-name/model"),
        ("s3://bucket/model", "DownloadFailed", "s3://"),
        ("hf://one/two/three", "DownloadFailed", "hf://org/name"),
    ],
)
def test_a_name_that_leads_nowhere_says_so(
    uri: str, reason: str, named: str, tmp_path: Path
) -> None:
    with pytest.raises(StartFailed, match=named) as failed:
        store.resolve(uri, cache_dir=tmp_path, progress=quiet)
    assert failed.value.reason == reason


def test_a_folder_of_another_kind_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").touch()
    with pytest.raises(StartFailed, match="name the file itself") as failed:
        store.resolve(str(tmp_path), cache_dir=tmp_path, progress=quiet)
    assert failed.value.reason == "UnsupportedModel"
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(StartFailed, match="safetensors"):
        store.resolve(str(tmp_path), cache_dir=tmp_path, progress=quiet)


def test_a_broken_build_leaves_no_folder_behind(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF but nothing else, as after a full disk or a cut connection")
    for _ in range(2):
        with pytest.raises(StartFailed, match="GGUF"):
            store.resolve(str(file), cache_dir=tmp_path / "cache", progress=quiet)
    left = [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()]
    assert left == []


@pytest.mark.parametrize(
    "damage", ["cut", "no tokenizer", "no head", "half a tokenizer", "empty config", "no template"]
)
def test_a_conversion_that_has_lost_something_is_made_again(tmp_path: Path, damage: str) -> None:
    made = TinyModel(hidden_size=16, num_layers=1).write(tmp_path / "one")
    with made_once(made, store._is_whole) as (_, building):
        assert building is None
    weights = made / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "no head":
        weights.write_bytes(b"\xff" * 100)
    elif damage == "half a tokenizer":
        tokenizer = made / "tokenizer.json"
        tokenizer.write_bytes(tokenizer.read_bytes()[: tokenizer.stat().st_size // 2])
    elif damage == "no template":
        (made / "tokenizer_config.json").unlink()
    elif damage == "empty config":
        (made / "config.json").write_bytes(b"")
    else:
        (made / "tokenizer.json").unlink()
    with made_once(made, store._is_whole) as (folder, building):
        assert building is not None
        (building / "file").write_text("new")
    assert [path.name for path in folder.iterdir()] == ["file"]


@pytest.mark.slow
def test_resolving_and_converting_import_neither_torch_nor_transformers() -> None:
    modules = ("paceline_engine.model.gguf", "paceline_engine.model.store")
    assert imported_by(*modules, watched=("torch", "transformers")) == set()
