"""What a run leaves can be read by its owner only."""

import os
import stat
from pathlib import Path

import pytest

from pfedbred.errors import SettingError
from pfedbred.io import atomic
from pfedbred.io.atomic import write_text
from pfedbred.io.folders import ensure_folder
from pfedbred.runs import layout, locks
from pfedbred.runs.metrics_file import MetricsFile


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_folders_of_runs_are_private(finished):
    for folder in (finished / "run", finished / "sweep"):
        assert mode(folder) == 0o700
        assert {each.name: oct(mode(each)) for each in folder.iterdir() if mode(each) != 0o600} == {}
        assert len(list(folder.iterdir())) >= 3


def test_a_new_folder_is_private_and_an_existing_one_is_left_as_it_is(tmp_path):
    ensure_folder(tmp_path / "above" / "run")
    assert (mode(tmp_path / "above"), mode(tmp_path / "above" / "run")) == (0o700, 0o700)
    (tmp_path / "shared").mkdir()
    with locks.locked(ensure_folder(tmp_path / "shared")):
        assert mode(tmp_path / "shared" / locks.LOCK) == 0o600
        MetricsFile(tmp_path / "shared").close()
        write_text(tmp_path / "shared" / "x", "")
    assert mode(tmp_path / "shared") == 0o755
    assert {mode(each) for each in (tmp_path / "shared").iterdir()} == {0o600}


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    """Else the file it points to would be overwritten."""
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / locks.LOCK).symlink_to(tmp_path / "precious")
    words = r"cannot lock .*run: .*\.lock is a symbolic link; remove it"
    with pytest.raises(SettingError, match=words), locks.locked(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "run" / locks.LOCK).is_symlink()


def test_a_lock_with_a_second_name_is_refused(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / locks.LOCK).hardlink_to(tmp_path / "precious")
    for _ in range(2):  # refused, not locked
        with (
            pytest.raises(SettingError, match=r"cannot lock .*run: .*\.lock is also another file; remove it"),
            locks.locked(tmp_path / "run"),
        ):
            pass
    assert (tmp_path / "precious").read_text() == "mine"
    (tmp_path / "run" / locks.LOCK).unlink()
    with locks.locked(tmp_path / "run"):
        pass


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/null")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name, kind in {"fifo": "not a file", "link": "a link", "dangling": "a link"}.items():
        before = (tmp_path / name).lstat()
        with pytest.raises(atomic.WriteError, match=f"cannot write .*{name}: it is {kind}"):
            write_text(tmp_path / name, "new")
        assert (tmp_path / name).lstat() == before
    for folder in (tmp_path, Path("")):
        with pytest.raises(atomic.WriteError, match=r"cannot write .*: .*folder"):
            write_text(folder, "new")


def test_no_link_in_the_place_of_a_written_file_is_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    partial = tmp_path / f".x.{os.getpid()}{atomic.PARTIAL}"
    for link in (partial, tmp_path / layout.METRICS):
        link.symlink_to(tmp_path / "precious")
    write_text(tmp_path / "x", "new")
    with pytest.raises(OSError, match="symbolic links"):
        MetricsFile(tmp_path)
    assert [(tmp_path / name).read_text() for name in ("x", "precious")] == ["new", "mine"]
