import pytest
import torch

from paceline_kernels import kernel_table, ops

SHAPES = [(96, 64), (64, 32)]


def choose(folder, dtypes=(torch.float32,)):
    return kernel_table.kernel_table(
        SHAPES, weight_dtype=torch.bfloat16, dtypes=dtypes, folder=folder
    )


@pytest.mark.slow
@pytest.mark.usefixtures("cpp_compiler")
def test_the_choice_is_the_candidate_with_the_lowest_mean(tmp_path):
    table = choose(tmp_path)
    assert table.cpu_unavailable is None
    assert {(row.out_features, row.in_features) for row in table.rows} == set(SHAPES)
    chosen, other = f"{table.impl}/float32", {"cpu": "torch", "torch": "cpu"}[table.impl]
    product_chosen = product_other = 1.0
    for row in table.rows:
        product_chosen *= row.microseconds[chosen]
        product_other *= row.microseconds[f"{other}/float32"]
    assert product_chosen <= product_other


@pytest.mark.slow
def test_what_was_measured_is_remembered_and_a_damaged_memory_is_measured_again(tmp_path):
    first = choose(tmp_path)
    assert choose(tmp_path) == first
    (file,) = (tmp_path / "kernels").glob("table-*.json")
    file.write_text("{")
    assert choose(tmp_path).rows != ()
    assert file.read_text().startswith("[")


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_costs_no_start(tmp_path):
    (tmp_path / "kernels").write_text("a file where the folder should be")
    assert choose(tmp_path).impl in {"cpu", "torch"}


@pytest.mark.slow
def test_a_memory_that_cannot_be_put_in_its_place_leaves_nothing_behind(tmp_path):
    choose(tmp_path)
    (file,) = (tmp_path / "kernels").glob("table-*.json")
    file.unlink()
    file.mkdir()
    assert choose(tmp_path).rows != ()
    assert list((tmp_path / "kernels").glob("table-*")) == [file]


def test_only_the_allowed_activation_formats_are_tried():
    assert {c.dtype for c in kernel_table.candidates([torch.bfloat16])} == {torch.bfloat16}
    names = [c.name for c in kernel_table.candidates([torch.float32, torch.bfloat16])]
    own = [] if ops.cpu_unavailable_reason() else ["cpu/float32"]
    assert names == [*own, "torch/float32", "torch/bfloat16"]
