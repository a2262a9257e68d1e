"""Downloads a file, also over a connection that breaks."""

import os
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

from algos.errors import UserError
from algos.folders import alone


def download(url: str, path: Path, name: str) -> None:
    """Downloads a dataset's file, starting where an earlier try stopped; `path` appears when the file is complete.

    If several processes ask for the file, one downloads it and the others wait. Raises UserError if the download fails,
    in a sentence with the file, its folder and a command that downloads it.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path.with_name(path.name + ".lock"), f"downloads {name}"):
            if path.exists():
                return
            _fetch(url, part, name)
            with open(part, "rb") as file:
                magic = file.read(8)
            if not magic.startswith((b"\x89HDF\r\n\x1a\n", b"PK\x03\x04")):
                part.unlink()
                raise OSError("the server sent a file that is neither HDF5 nor npz")
            os.replace(part, path)
    except (OSError, HTTPException, ValueError) as error:  # urllib's errors are OSErrors
        raise UserError(
            f"--dataset: {name} needs the file {path.name} in {path.parent}, and downloading it failed ({error}): "
            f"curl -L -C - -o {path} {url}"
        ) from None


def _fetch(url: str, part: Path, name: str) -> None:
    """Appends to a file the bytes that it lacks of a URL; raises OSError if not all of them arrive."""
    from tqdm import tqdm

    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        reply = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        if not have or error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have}":  # the file is complete
            return
        part.unlink()
        return _fetch(url, part, name)
    with reply:
        have = have if reply.status == 206 else 0  # a server may ignore the range and send all of it
        if "Content-Length" not in reply.headers:
            raise OSError("the server does not say how long the file is")
        total = have + int(reply.headers["Content-Length"])
        with (
            open(part, "ab" if have else "wb") as file,
            tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=name, disable=None) as progress,
        ):
            while block := reply.read(1 << 20):
                file.write(block)
                progress.update(len(block))
            file.flush()
            os.fsync(file.fileno())
    if (size := part.stat().st_size) != total:
        raise OSError(f"{size:,} of {total:,} bytes arrived; the next try continues from there")
