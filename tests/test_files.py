"""Files that are whole at any moment."""

import os
import threading

import pytest

from hap.files import write_whole


def test_a_file_is_whole_at_any_moment(tmp_path):
    path = tmp_path / "plan.json"
    texts = ["a" * 1_000_000, "b" * 2_000_000]
    write_whole(path, texts[0])

    def write(text):
        for _ in range(20):
            write_whole(path, text)

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_text() in texts
    assert os.listdir(tmp_path) == ["plan.json"]


def test_what_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    write_whole(path, "before")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")

    def full(*_, **__):
        raise OSError(28, "No space left on device", "part")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*plan\.json'"):
        write_whole(path, "after")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_what_is_replaced_keeps_its_permissions(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    write_whole(path, "before")
    path.chmod(0o600)
    write_whole(path, "after")
    assert path.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everything
    with pytest.raises(PermissionError, match=r"plan\.json'"):
        write_whole(path, "later")
    assert path.read_text() == "after"


def test_errors_name_the_file_and_links_and_pipes_stay(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none/plan\.json'"):
        write_whole(tmp_path / "none" / "plan.json", "")
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, "")
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "text"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
