"""Downloads over connections that break, from a server on this machine."""

import functools
import http.server
import threading
from pathlib import Path

import pytest
from dataset_files import assert_same, d4rl_arrays, expected, hdf5, refused, trajectories, transitions

from algos.data import load, ogbench
from algos.data.download import download
from algos.errors import UserError
from envs import d4rl


class Server(http.server.BaseHTTPRequestHandler):
    """Sends one file in the way that its attributes say."""

    content = b""
    ranges = True
    cut: int | None = None  # bytes after which a connection breaks
    length = True
    asked: list  # the ranges that were asked for

    def do_GET(self):
        asked = self.headers.get("Range")
        self.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.ranges else 0
        if start >= len(self.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(self.content)}")
            self.end_headers()
            return
        self.send_response(206 if asked and self.ranges else 200)
        if self.length:
            self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        self.wfile.write(self.content[start:][: self.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    """A subclass of `Server` to change, with its `url`; the content is a file of D4RL's layout."""
    content = Path(hdf5(tmp_path / "served.hdf5", d4rl_arrays(trajectories(50, 50)))).read_bytes()
    handler = type("Handler", (Server,), {"content": content, "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as it:
        threading.Thread(target=functools.partial(it.serve_forever, poll_interval=0.01), daemon=True).start()
        handler.url = f"http://127.0.0.1:{it.server_port}/"
        yield handler
        it.shutdown()


def test_a_missing_file_is_downloaded(server, monkeypatch, tmp_path):
    monkeypatch.setattr(d4rl, "SERVER", server.url)
    assert_same(transitions(load("d4rl/hopper-medium-v2")), expected(trajectories(50, 50)))
    assert (tmp_path / "d4rl" / "hopper_medium-v2.hdf5").read_bytes() == server.content
    load("d4rl/hopper-medium-v2")
    assert server.asked == [None]  # once


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_is_continued_after_a_broken_connection(server, tmp_path, ranges):
    place = tmp_path / "new" / "file.hdf5"
    server.cut, server.ranges = 1000, ranges
    with pytest.raises(UserError, match=f"1,000 of {len(server.content):,} bytes arrived") as error:
        download(server.url, place, "d4rl/x")
    assert f"curl -L -C - -o {place} {server.url}" in str(error.value) and not place.exists()
    server.cut = None
    download(server.url, place, "d4rl/x")
    assert place.read_bytes() == server.content and server.asked == [None, "bytes=1000-"]
    assert not (tmp_path / "new" / "file.hdf5.part").exists()


def test_a_part_that_is_whole_or_too_long_does_not_block(server, tmp_path):
    place, part = tmp_path / "file.hdf5", tmp_path / "file.hdf5.part"
    part.write_bytes(server.content)
    download(server.url, place, "d4rl/x")
    assert place.read_bytes() == server.content and server.asked == [f"bytes={len(server.content)}-"]
    place.unlink()
    part.write_bytes(server.content + b"more")
    download(server.url, place, "d4rl/x")
    assert place.read_bytes() == server.content


def test_a_file_that_is_no_dataset_is_not_kept(server, tmp_path):
    server.content = b"<html>Sign in to this network</html>"
    with pytest.raises(UserError, match="neither HDF5 nor npz"):
        download(server.url, tmp_path / "file.hdf5", "d4rl/x")
    assert not list(tmp_path.glob("file.hdf5*.part")) and not (tmp_path / "file.hdf5").exists()
    server.length = False
    with pytest.raises(UserError, match="how long"):
        download(server.url, tmp_path / "file.hdf5", "d4rl/x")


def test_several_downloads_of_one_file_do_not_disturb_each_other(server, tmp_path):
    place = tmp_path / "file.hdf5"
    threads = [threading.Thread(target=download, args=(server.url, place, "d4rl/x")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert place.read_bytes() == server.content and server.asked == [None]


def test_without_a_network_a_sentence_names_the_missing_file(monkeypatch, tmp_path):
    monkeypatch.setattr(d4rl, "SERVER", "http://127.0.0.1:1/")
    monkeypatch.setattr(ogbench, "SERVER", "http://127.0.0.1:1/")
    sentence = refused("d4rl/hopper-medium-v2")
    for words in ("hopper_medium-v2.hdf5", str(tmp_path / "d4rl"), "curl -L -C - -o", "http://127.0.0.1:1/gym_mujoco"):
        assert words in sentence
    assert "pointmaze-medium-navigate-v0.npz" in refused("ogbench/pointmaze-medium-navigate-v0")
