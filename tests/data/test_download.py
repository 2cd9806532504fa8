import hashlib
import http.server
import logging
import os
import re
import threading
import urllib.request
from dataclasses import replace

import numpy as np
import pytest

from mixdim.data.public.download import ADDRESSES, SOURCES, download, fetch, licence_of

CONTENT = np.random.default_rng(0).bytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()
HALF = len(CONTENT) // 2
FILE = SOURCES["movielens-1m"].file
LATEST = SOURCES["movielens-latest"].file
CRITEO = SOURCES["criteo-kaggle"].file


class Host(http.server.ThreadingHTTPServer):
    """A host of files on this machine, which can be made to misbehave."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = {}
        self.asked = []  # (file, Range header)
        self.with_ranges = True
        self.cuts = 0  # connections that end half-way through what was asked
        self.range_shift = 0

    @property
    def base(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        host = self.server
        name, wanted = self.path[1:], self.headers.get("Range")
        host.asked.append((name, wanted))
        if name not in host.files:
            self.send_error(404)
            return
        content, size = host.files[name], len(host.files[name])
        first = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and host.with_ranges else 0
        if first >= size:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if first:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first + host.range_shift}-{size - 1}/{size}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(size - first))
        self.end_headers()
        end = size
        if host.cuts:
            host.cuts -= 1
            end = first + (size - first) // 2
        self.wfile.write(content[first:end])

    def log_message(self, *_):
        pass


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setitem(SOURCES, "movielens-1m", replace(SOURCES["movielens-1m"], md5=MD5))
    with Host() as host:
        host.files[FILE] = host.files[LATEST] = host.files[CRITEO] = CONTENT
        thread = threading.Thread(target=host.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield host
        host.shutdown()
        thread.join()


# Straight to the host of the test, whatever proxy this machine may have.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(host, directory, name="movielens-1m", **options):
    base = host if isinstance(host, str) else host.base
    return fetch(name, directory, opener=DIRECT, base=base, **options)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_file_is_fetched_checked_and_put_in_its_place(host, tmp_path):
    seen = []
    result = get(host, tmp_path / "new", progress=lambda *done: seen.append(done))
    assert result.path == tmp_path / "new" / FILE
    assert result.path.read_bytes() == CONTENT
    assert names(tmp_path / "new") == [FILE]
    assert (result.fetched, result.checked) == (True, True)
    assert str(result) == f"{result.path}: fetched, its md5 is right"
    assert (seen[0], seen[-1]) == ((FILE, 0, len(CONTENT)), (FILE, len(CONTENT), len(CONTENT)))
    assert seen == sorted(seen)


def test_links_to_where_there_is_room_are_filled(host, tmp_path):
    (tmp_path / "here").symlink_to("disk")
    get(host, tmp_path / "here")
    assert (tmp_path / "disk" / FILE).read_bytes() == CONTENT
    (tmp_path / "disk" / FILE).rename(tmp_path / "disk" / "away")
    (tmp_path / FILE).symlink_to("disk/other.zip")
    get(host, tmp_path)
    assert (tmp_path / FILE).is_symlink()
    assert names(tmp_path / "disk") == ["away", "other.zip"]


def test_a_file_that_is_there_and_right_is_not_fetched_again(host, tmp_path):
    (tmp_path / FILE).write_bytes(CONTENT)
    result = get(host, tmp_path)
    assert (result.fetched, result.checked) == (False, True)
    assert host.asked == []


def test_of_two_downloads_at_once_one_is_refused(host, tmp_path):
    def second(*_):
        with pytest.raises(OSError, match=f"another process is at work in {tmp_path / FILE}.part"):
            get(host, tmp_path)

    assert get(host, tmp_path, progress=second).path.read_bytes() == CONTENT
    assert names(tmp_path) == [FILE]


def test_a_file_that_is_there_and_wrong_is_never_replaced(host, tmp_path):
    (tmp_path / FILE).write_bytes(b"an older release")
    with pytest.raises(ValueError, match=f"{FILE} is there already and has the md5 .* instead of {MD5}"):
        get(host, tmp_path)
    assert (tmp_path / FILE).read_bytes() == b"an older release"


@pytest.mark.parametrize("line", [f"MD5 ({LATEST}) = {MD5}\n", f"{MD5.upper()}  {LATEST}\n"])
def test_a_changing_file_is_checked_with_the_md5_beside_it(host, tmp_path, line):
    host.files[f"{LATEST}.md5"] = line.encode()
    assert get(host, tmp_path, "movielens-latest").checked
    assert get(host, tmp_path, "movielens-latest").fetched is False
    (tmp_path / LATEST).write_bytes(b"of last year")
    with pytest.raises(ValueError, match="another release"):
        get(host, tmp_path, "movielens-latest")


def test_an_md5_file_without_an_md5_is_an_error(host, tmp_path):
    host.files[f"{LATEST}.md5"] = b"<html>Log in to the hotel's network</html>"
    with pytest.raises(OSError, match=r"\.md5 holds no md5"):
        get(host, tmp_path, "movielens-latest")
    assert names(tmp_path) == []


def test_a_file_without_a_checksum_is_said_to_be_unchecked(host, tmp_path, caplog):
    for name in ("criteo-kaggle", "movielens-latest"):
        result = get(host, tmp_path, name)
        assert (result.fetched, result.checked) == (True, False)
        assert str(result).endswith("fetched, not checked: its publisher gives no checksum")
        with caplog.at_level(logging.WARNING):
            assert download(name, tmp_path, opener=DIRECT, base=host.base) == result.path
        assert "was there already, not checked" in caplog.records[-1].getMessage()
    assert CRITEO + ".md5" not in [name for name, _ in host.asked]


def test_a_partial_download_is_resumed_where_it_ended(host, tmp_path):
    (tmp_path / f"{FILE}.part").write_bytes(CONTENT[:HALF])
    seen = []
    result = get(host, tmp_path, progress=lambda *done: seen.append(done))
    assert result.path.read_bytes() == CONTENT
    assert host.asked == [(FILE, f"bytes={HALF}-")]
    assert seen[0] == (FILE, HALF, len(CONTENT))
    assert names(tmp_path) == [FILE]


def test_a_host_without_ranges_sends_the_file_from_its_beginning(host, tmp_path):
    host.with_ranges = False
    (tmp_path / f"{FILE}.part").write_bytes(b"x" * (len(CONTENT) - 1))
    assert get(host, tmp_path).path.read_bytes() == CONTENT


def test_a_part_that_is_the_whole_file_only_gets_its_name(host, tmp_path):
    (tmp_path / f"{CRITEO}.part").write_bytes(CONTENT)
    assert get(host, tmp_path, "criteo-kaggle").path.read_bytes() == CONTENT
    assert host.asked == [(CRITEO, f"bytes={len(CONTENT)}-")]


def test_a_part_longer_than_the_file_is_started_over(host, tmp_path):
    (tmp_path / f"{CRITEO}.part").write_bytes(CONTENT + b"of another release")
    assert get(host, tmp_path, "criteo-kaggle").path.read_bytes() == CONTENT


def test_a_range_that_was_not_requested_is_refused(host, tmp_path):
    host.range_shift = 7
    (tmp_path / f"{FILE}.part").write_bytes(CONTENT[:HALF])
    with pytest.raises(OSError, match=f"requested the bytes from {HALF} on, got 'bytes {HALF + 7}-"):
        get(host, tmp_path)
    assert (tmp_path / f"{FILE}.part").read_bytes() == CONTENT[:HALF]


@pytest.mark.parametrize("part", [b"", b"x" * HALF])
def test_a_wrong_checksum_deletes_what_came_and_says_so(host, tmp_path, part):
    if part:
        (tmp_path / f"{FILE}.part").write_bytes(part)
    else:
        host.files[FILE] = CONTENT[::-1]
    with pytest.raises(ValueError, match=rf"{FILE} has the md5 .* instead of {MD5}: it was deleted"):
        get(host, tmp_path)
    assert names(tmp_path) == []


def test_a_connection_cut_once_is_taken_up_again(host, tmp_path):
    host.cuts = 1
    assert get(host, tmp_path).path.read_bytes() == CONTENT
    assert host.asked == [(FILE, None), (FILE, f"bytes={HALF}-")]


def test_a_connection_that_is_always_cut_leaves_a_part_for_the_next_call(host, tmp_path):
    host.cuts = 10**6
    with pytest.raises(
        OSError, match=r"ended after [\d,]+ of 300,000 bytes, which are kept\): try again"
    ):
        get(host, tmp_path)
    assert names(tmp_path) == [f"{FILE}.part"]
    kept = (tmp_path / f"{FILE}.part").stat().st_size
    assert 0 < kept < len(CONTENT)
    host.cuts = 0
    assert get(host, tmp_path).path.read_bytes() == CONTENT
    assert host.asked[-1] == (FILE, f"bytes={kept}-")


@pytest.fixture
def nowhere():
    """The address of a port where nobody listens."""
    host = Host()
    base = host.base
    host.server_close()
    return base


@pytest.mark.parametrize("name", ["movielens-1m", "movielens-latest", "criteo-kaggle"])
def test_without_a_network_one_line_says_what_to_fetch_and_where_to_put_it(nowhere, tmp_path, name):
    with pytest.raises(OSError, match="Connection refused") as error:
        get(nowhere, tmp_path, name)
    file = SOURCES[name].file
    assert str(error.value) == (
        f"cannot fetch {nowhere}/{file} (Connection refused): "
        f"try again, or fetch it by hand and put it at {tmp_path / file}"
    )
    assert names(tmp_path) == []


def test_a_file_put_there_by_hand_is_taken_without_a_network(nowhere, tmp_path):
    (tmp_path / LATEST).write_bytes(CONTENT)
    result = get(nowhere, tmp_path, "movielens-latest")
    assert (result.fetched, result.checked) == (False, False)
    assert result.note == f"not checked: {nowhere}/{LATEST}.md5 cannot be read (Connection refused)"


def test_a_host_that_has_no_such_file_is_named(host, tmp_path):
    del host.files[FILE]
    with pytest.raises(OSError, match=r"HTTP 404 Not Found\): try again, or fetch it by hand"):
        get(host, tmp_path)


def test_a_full_disk_is_not_blamed_on_the_network(host, tmp_path, monkeypatch):
    def no_space(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match=rf"^cannot write .*{FILE}\.part: No space left on device$"):
            get(host, tmp_path)
    assert names(tmp_path) == [f"{FILE}.part"]
    assert get(host, tmp_path).path.read_bytes() == CONTENT


def test_impossible_places_are_named(host, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"^cannot write .*file: "):
        get(host, tmp_path / "file")
    (tmp_path / FILE).mkdir()
    with pytest.raises(IsADirectoryError, match=f"{FILE}: it is a directory"):
        get(host, tmp_path)


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(
        ValueError, match=r"must be one of movielens-100k, .*, criteo-kaggle, got 'netflix'"
    ):
        download("netflix", tmp_path)


def test_every_data_set_has_an_official_address_a_licence_and_where_possible_a_checksum():
    for name, source in SOURCES.items():
        if name.startswith("movielens"):
            release = name.removeprefix("movielens-")
            assert ADDRESSES[name] == f"https://files.grouplens.org/datasets/movielens/ml-{release}.zip"
            assert source.md5_beside == ("latest" in name)
            assert source.md5_beside or re.fullmatch("[0-9a-f]{32}", source.md5)
            assert "research" in licence_of(name)
            assert "Harper" in licence_of(name)
    assert "non-commercial" in licence_of("criteo-kaggle")
    assert len({source.md5 for source in SOURCES.values() if source.md5}) == 5
