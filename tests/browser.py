"""A browser for tests of pages: chromium without a window, driven through a pipe.

It speaks the DevTools protocol: messages in JSON, each with a NUL after it, on descriptors 3 and 4.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import time
from contextlib import contextmanager, suppress

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DEADLINE_S = 120.0
"""How long an answer may take: a guard against hangs, not a measurement."""
OPTIONS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"),
    *("--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
SHIFT = 8
COUNT = """
seen = {mousemove: 0, mouseup: 0, wheel: 0, keyup: 0, input: 0};
for (const kind in seen) addEventListener(kind, () => seen[kind]++, true);
"""
"""Counts the events that the page gets: the browser may answer before it has one."""
KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Enter": 13}


def find() -> str | None:
    """Return the path of a browser, None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A browser with one page.

    Parameters
    ----------
    program : str
        Its path.
    folder : pathlib.Path
        An empty folder for its files.
    """

    def __init__(self, program, folder):
        far_in, self._out = os.pipe()
        self._in, far_out = os.pipe()
        pipes = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (far_in, far_out)]
        quiet = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        moves = [(pipes[0], 3), (pipes[1], 4), (quiet, 1), (quiet, 2)]
        actions = [(os.POSIX_SPAWN_DUP2, *one) for one in moves]
        home = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
        command = [program, *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        where = {"file_actions": actions, "setpgroup": 0}
        self._pid = os.posix_spawn(program, command, os.environ | home, **where)
        for fd in (far_in, far_out, quiet, *pipes):
            os.close(fd)
        self._number, self._rest, self._session, self.complaints = 0, b"", None, []
        try:
            pages = [one for one in self._targets() if one["type"] == "page"]
            attached = {"targetId": pages[0]["targetId"], "flatten": True}
            self._session = self.call("Target.attachToTarget", **attached)["sessionId"]
            for domain in ("Page", "Runtime"):
                self.call(f"{domain}.enable")
            self._size(1300, 900)
        except BaseException:
            self.close()
            raise

    def _targets(self):
        """Return what there is, once a page is."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            found = self.call("Target.getTargets")["targetInfos"]
            if any(one["type"] == "page" for one in found):
                return found
        raise TimeoutError("the browser has opened no page")

    def close(self):
        """End the browser and all its processes."""
        os.close(self._out)  # with the pipe it ends by itself
        os.close(self._in)
        end = time.monotonic() + 10
        while os.waitpid(self._pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > end:
                os.killpg(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                break
            time.sleep(0.02)
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ------------------------------------------------------------ messages
    def call(self, method, **parameters):
        """Send a request, and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        raw = memoryview(json.dumps(message).encode() + b"\0")
        while raw:
            raw = raw[os.write(self._out, raw) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self):
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], DEADLINE_S)[0]:
                raise TimeoutError(f"the browser has not answered within {DEADLINE_S} s")
            part = os.read(self._in, 1 << 16)
            if not part:
                raise RuntimeError("the browser has ended")
            self._rest += part
        first, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(first)
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(message["params"]["exceptionDetails"])
        return message

    def value(self, expression):
        """Return the value of an expression of the page's script; of a promise, once it is kept."""
        asked = {"returnByValue": True, "awaitPromise": True, "replMode": True}
        result = self.call("Runtime.evaluate", expression=expression, **asked)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    # ------------------------------------------------------------ the page
    def open(self, path):
        """Open a file and wait until its script is ready."""
        self.call("Page.navigate", url=f"file://{path}")
        self._until("document.body?.dataset.ready")
        self.value(COUNT)
        self.drawn()

    def _until(self, condition):
        """Wait until an expression of the page is true."""
        end = time.monotonic() + DEADLINE_S
        while not self.value(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise TimeoutError(f"not true within {DEADLINE_S} s: {condition}")
            time.sleep(0.01)

    @contextmanager
    def _felt(self, kind):
        """Wait until the page has the event that this block makes, and has drawn itself anew."""
        before = self.value(f"seen.{kind}")
        yield
        self._until(f"seen.{kind} > {before}")
        self.drawn()

    def drawn(self):
        """Wait until the page has drawn itself."""
        frames = "new Promise(k => requestAnimationFrame(() => requestAnimationFrame(() => k())))"
        self.value(frames)
        while self.value("due"):
            self.value(frames)

    def resize(self, width, height):
        """Give the page another size, and wait until it has noticed."""
        self._size(width, height)
        self._until(f"innerWidth === {width} && innerHeight === {height}")
        self._until("width === Math.max(LEFT + 50, $('lanes').clientWidth)")  # it has been told
        self.drawn()

    def _size(self, width, height):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def place(self, selector, x=0.5, y=0.5):
        """Return a point of an element: shares of its width and height."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        left, top, width, height = self.value(f"(b => [b.left, b.top, b.width, b.height])({box})")
        return left + x * width, top + y * height

    def _mouse(self, kind, at, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], **more)

    def point(self, at):
        """Move the mouse to a point."""
        with self._felt("mousemove"):
            self._mouse("mouseMoved", at)

    def drag(self, start, *stops):
        """Press the button at a point, move to others, and let it go there; without any: a click."""
        held = {"button": "left", "clickCount": 1}
        self._mouse("mouseMoved", start)
        self._mouse("mousePressed", start, **held)
        for at in stops:
            self._mouse("mouseMoved", at, button="left", buttons=1)
        with self._felt("mouseup"):
            self._mouse("mouseReleased", (start, *stops)[-1], **held)

    click = drag

    def wheel(self, at, down=0, right=0, modifiers=0):
        """Turn the wheel."""
        with self._felt("wheel"):
            self._mouse("mouseWheel", at, deltaX=right, deltaY=down, modifiers=modifiers)

    def press(self, *keys):
        """Press keys one after the other, by name or letter."""
        for key in keys:
            code = {"windowsVirtualKeyCode": KEYS[key]} if key in KEYS else {"text": key}
            if key == "Enter":
                code["text"] = "\r"
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **code)
            with self._felt("keyup"):
                self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def write(self, text):
        """Write text where the keyboard's focus is."""
        with self._felt("input"):
            self.call("Input.insertText", text=text)
