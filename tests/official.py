"""A server of downloads on this machine, and archives as their owners pack them."""

import contextlib
import hashlib
import io
import tarfile
import tempfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def md5(content):
    return "md5:" + hashlib.md5(content).hexdigest()


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class Server:
    """Serves `content` by path. Behaviour to set: `cut` (bytes after which the first so many answers break
    off), `ranges` (whether Range is understood), `status` (answer of the first so many requests),
    `redirect`."""

    def __init__(self):
        self.content, self.redirect, self.status, self.ranges_of = {}, {}, [], []
        self.cut, self.cuts, self.ranges = 0, 0, True
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *arguments):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def url(self, name):
        return f"http://127.0.0.1:{self.http.server_port}/{name}"

    def answer(self, request):
        name, wanted = request.path[1:], request.headers.get("Range")
        self.ranges_of.append(wanted)
        if name in self.redirect:
            request.send_response(302)
            request.send_header("Location", self.redirect[name])
            return request.end_headers()
        status = self.status.pop(0) if self.status else 200 if name in self.content else 404
        if status != 200:
            return request.send_error(status)
        content = self.content[name]
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        if start >= len(content) > 0 and start:
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(content)}")
            return request.end_headers()
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        end = None
        if self.cuts:
            self.cuts -= 1
            end = start + self.cut
        with contextlib.suppress(ConnectionError):
            request.wfile.write(content[start:end])


@pytest.fixture
def server(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def make_zip(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def make_tar(path, members, mode="w:gz"):
    """members: {name: bytes or a TarInfo}."""
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            data = b"" if isinstance(content, tarfile.TarInfo) else content
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def archived(make, members):
    """The bytes of an archive."""
    with tempfile.TemporaryDirectory() as folder:
        return make(Path(folder) / "made", members).read_bytes()


def encoded(write, *arguments, **more):
    """The bytes that a function writes into a file."""
    buffer = io.BytesIO()
    write(buffer, *arguments, **more)
    return buffer.getvalue()


def png(image):
    return encoded(Image.fromarray(image).save, "PNG")


def grey(value):
    return png(np.full((9, 7, 3), value, np.uint8))
