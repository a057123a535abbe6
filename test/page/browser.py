"""Controls a headless Chromium over the DevTools protocol, with the standard library alone."""

import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13, "Escape": 27, "Home": 36, "End": 35, "Tab": 9}
LIMIT = 90  # seconds that a wait may take
FRAMES = 4  # frames that a page may need to draw itself after a resize or an answer


class Browser:
    """A headless Chromium with one tab."""

    def __init__(self):
        self.profile = tempfile.mkdtemp()
        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--hide-scrollbars",
             "--remote-debugging-port=0", f"--user-data-dir={self.profile}", "about:blank"], stderr=subprocess.PIPE, text=True)
        port = next(m[1] for line in self.process.stderr if (m := re.search(r"ws://127\.0\.0\.1:(\d+)/", line)))
        tabs = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=LIMIT))
        address = next(tab for tab in tabs if tab["type"] == "page")["webSocketDebuggerUrl"]
        self.socket = socket.create_connection(("127.0.0.1", int(port)), timeout=LIMIT)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(f"GET {address.split(port, 1)[1]} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.stream = self.socket.makefile("rb")
        while self.stream.readline() != b"\r\n":
            pass
        self.calls, self.events = 0, []
        for domain in "Page", "Runtime", "Log", "Network":
            self.call(domain + ".enable")

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _send(self, text):
        n, mask = len(text), os.urandom(4)
        head = struct.pack(">BB", 0x81, 0x80 | n) if n < 126 else struct.pack(">BBH", 0x81, 0xFE, n) if n < 1 << 16 else struct.pack(">BBQ", 0x81, 0xFF, n)
        self.socket.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(text)))

    def _receive(self):
        message = b""
        while True:
            first, n = self.stream.read(2)
            n &= 127
            if n == 126:
                (n,) = struct.unpack(">H", self.stream.read(2))
            elif n == 127:
                (n,) = struct.unpack(">Q", self.stream.read(8))
            message += self.stream.read(n)
            if first & 0x80:
                return json.loads(message)

    def call(self, method, **params):
        self.calls += 1
        self._send(json.dumps({"id": self.calls, "method": method, "params": params}).encode())
        while True:
            message = self._receive()
            if message.get("id") == self.calls:
                assert "error" not in message, f"{method}: {message}"
                return message["result"]
            self.events.append(message)

    def js(self, code):
        """Evaluates an expression on the page, and returns its value. If the value is a promise, waits for its result."""
        answer = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, f"{code}: {answer}"
        return answer["result"].get("value")

    def wait(self, code):
        """Waits until an expression is true, and returns its value."""
        end = time.monotonic() + LIMIT
        while not (value := self.js(f"Promise.resolve({code}).then(v => v instanceof Node || v)")):
            assert time.monotonic() < end, f"not true within {LIMIT} s: {code}; the page: {self.js('document.body.innerText')}"
            time.sleep(0.02)
        return value

    def resize(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.wait(f"innerWidth === {width}")

    def open(self, address):
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        self.wait_until_drawn()

    def wait_until_drawn(self):
        """Waits until all visible rows are drawn."""
        self.wait("document.querySelector('.row .token') && !document.querySelector('.row.stale') && "
                  f"new Promise(done => {{ const frame = n => n ? requestAnimationFrame(() => frame(n - 1)) : done(!document.querySelector('.row.stale')); frame({FRAMES}) }})")

    def key(self, *keys, shift=False):
        for key in keys:
            text = {"text": "\r" if key == "Enter" else key} if key == "Enter" or len(key) == 1 else {}
            for kind in "keyDown", "keyUp":
                self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=KEYS.get(key, 0), modifiers=8 if shift else 0,
                          **(text if kind == "keyDown" else {}))

    def type(self, text):
        self.call("Input.insertText", text=text)

    def save_picture(self, path):
        self.wait_until_drawn()
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
