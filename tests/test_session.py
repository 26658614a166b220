"""What notebooks share: the images of a picture, if they are on this machine."""

import numpy as np
import pytest

import ucl
from ucl.reproduction.session import figures_folder, images_here, open_session, profile_folder


@pytest.fixture(autouse=True)
def empty_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("UCL_DATA", str(tmp_path))
    return tmp_path


def test_images_that_are_not_here_are_named_in_one_line_and_not_downloaded(capsys, empty_data_folder):
    assert images_here("cifar10") is None
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("cifar10: not on this machine") and "ucl data get cifar10" in line
    assert list(empty_data_folder.iterdir()) == []


def test_a_run_that_is_given_several_times_is_one_run_of_the_notebook(tmp_path):
    session = open_session([ucl.Config(seed=seed) for seed in (0, 0, 0)], store=tmp_path, output=tmp_path / "figures")
    assert (str(session), session.missing) == ("0 of 1 runs measured", 1)


def test_a_folder_without_the_runs_that_a_notebook_needs_is_refused(tmp_path):
    with pytest.raises(ucl.InputError, match="has none of the 2 runs of this notebook; set compute to True or give"):
        open_session([ucl.Config(), ucl.Config(seed=1)], store=tmp_path, output=tmp_path / "figures", needs_runs=True)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A working folder in place of the checkout, with records of its own."""
    monkeypatch.setattr("ucl.reproduction.session.figures_folder", lambda: tmp_path / "figures")
    monkeypatch.chdir(tmp_path)
    for name in ("figures/runs", "own"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_results_of_other_records_do_not_replace_the_committed_ones(checkout):
    for output in (None, ""):
        with pytest.raises(ucl.InputError, match=r"^store='own': .*; with another store give output too$"):
            open_session([ucl.Config()], store="own", output=output)
    assert open_session([ucl.Config()], store="own", output="here").output.samefile("here")
    assert open_session([ucl.Config()], store="own/../figures/runs").output.samefile("figures")
    assert profile_folder("smoke", store="own").samefile("figures/smoke")


@pytest.mark.filterwarnings("ignore:bloodcell")
def test_methods_without_any_run_are_named(tmp_path):
    sizes = [
        ucl.Config(dataset="bloodcell", method=name, memory_size=39, seed=0) for name in ("finetune", "agem", "er")
    ]
    session = open_session(sizes, store=figures_folder() / "runs", output=tmp_path)
    assert str(session) == "1 of 3 runs measured; without any run: A-GEM, BI bottom"


def test_an_output_that_cannot_be_created_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for output in (tmp_path / "file", tmp_path / "file" / "figures"):
        with pytest.raises(ucl.InputError, match=r"^output='.*': can't be created \(.*\); give another folder$"):
            profile_folder("published", output)


def test_images_that_are_here_are_loaded_without_a_word(capsys):
    digits = ucl.datasets.load("digits")
    assert np.array_equal(images_here("digits", digits.fingerprint).train_images, digits.train_images)
    assert images_here("digits").fingerprint == digits.fingerprint
    assert capsys.readouterr().out == ""


def test_other_images_than_those_of_the_records_are_not_drawn(capsys):
    assert images_here("digits", "0123456789abcdef") is None
    (line,) = capsys.readouterr().out.splitlines()
    assert "differ from those of the records" in line


@pytest.mark.parametrize("compute", ["false", "no", "true", 1])
def test_a_text_does_not_start_a_training(tmp_path, compute):
    """`papermill -p compute false` gives the text "false"."""
    with pytest.raises(ucl.InputError, match="give True or False"):
        open_session([ucl.Config()], store=tmp_path, output=tmp_path, compute=compute)


@pytest.mark.parametrize("seeds", ["[0, 1]", "0", None, 0, 3])
@pytest.mark.parametrize("grid", ["bloodcell", []])
def test_seeds_that_are_no_list_are_refused_with_the_flag_that_takes_lists(tmp_path, seeds, grid):
    with pytest.raises(ucl.InputError, match=r"papermill takes it with -y 'seeds: \[0, 1, 2\]'"):
        open_session(grid, store=tmp_path, output=tmp_path, seeds=seeds)


@pytest.mark.parametrize("grid", ["bloodcell", []])
def test_an_empty_list_of_seeds_is_refused(tmp_path, grid):
    with pytest.raises(ucl.InputError, match=r"^seeds=\[\]: give at least one seed$"):
        open_session(grid, store=tmp_path, output=tmp_path, seeds=[])
