"""Headless Chromium for the tests of the pages."""

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
# No sandbox because a container's root has none; the others keep a fresh profile from calling home.
HEADLESS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --disable-dev-shm-usage --no-first-run "
    "--disable-sync --disable-background-networking --disable-component-update --hide-scrollbars "
    "--remote-debugging-pipe"
).split()


class Browser:
    """Headless Chromium over its debugging pipe: a message is one JSON text and a zero byte."""

    def __init__(self, profile):
        (inbox, self.out), (self.inward, outbox) = os.pipe(), os.pipe()
        # it reads from 3 and writes to 4
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (inbox, outbox)]
        command = [
            "bash",
            "-c",
            f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}',
            "bash",
            CHROMIUM,
            *HEADLESS,
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        self.process = subprocess.Popen(
            command,
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for end in (inbox, outbox, *theirs):
            os.close(end)
        self.number, self.rest, self.events, self.session = 0, b"", [], {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {
            "sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        }
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.number += 1
        os.write(
            self.out,
            json.dumps({"id": self.number, "method": method, "params": parameters} | self.session).encode()
            + b"\0",
        )
        while (message := self.next()).get("id") != self.number:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    def next(self):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.inward], [], [], 120)
            assert ready, "the browser has gone, or says nothing"
            more = os.read(self.inward, 1 << 20)
            assert more, "the browser has gone, or says nothing"
            self.rest += more
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def open(self, path, width=1280, night=False, height=900):
        """Load a page with its pictures; what went wrong: console errors, exceptions, files not loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if night else "light"}],
        )
        self.events.clear()
        self.call("Page.navigate", url=path if isinstance(path, str) else path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.next())
        self.run(
            "Promise.all([...document.images].map(image => { image.loading = 'eager'; return "
            "image.decode().catch(() => 0); }))"
        )
        bad = ("Runtime.exceptionThrown", "Network.loadingFailed")
        return [
            event
            for event in self.events
            if event["method"] in bad
            or event["method"] == "Log.entryAdded"
            and event["params"]["entry"]["level"] == "error"
            or event["method"] == "Runtime.consoleAPICalled"
            and event["params"]["type"] in ("error", "assert")
        ]

    def run(self, code):
        answer = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, wanted, seconds=120):
        """The text of the page as soon as it shows `wanted`, or of the last look."""
        until = time.monotonic() + seconds
        while wanted not in (text := self.run("document.body.innerText")) and time.monotonic() < until:
            time.sleep(0.2)
        return text

    def close(self):
        for end in (self.out, self.inward):
            os.close(end)
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (Debian: apt install chromium)")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()
