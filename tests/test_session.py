"""What notebooks share: the images of a picture, if they are on this machine."""

import numpy as np
import pytest

import ucl
from ucl.reproduction.session import images_here, open_session


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


@pytest.mark.parametrize("seeds", ["[0, 1]", "0", None])
def test_seeds_that_are_no_list_are_refused_with_the_flag_that_takes_lists(tmp_path, seeds):
    with pytest.raises(ucl.InputError, match=r"papermill takes it with -y 'seeds: \[0, 1, 2\]'"):
        open_session("bloodcell", store=tmp_path, output=tmp_path, seeds=seeds)
