"""A headless Chromium, driven through chromedriver's own protocol (WebDriver, W3C) with the standard library alone."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from tests.patience import PATIENCE

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
AXE = Path(__file__).parents[2] / "build" / "axe" / "package" / "axe.min.js"
"""axe-core of npm, which `make build/axe/stamp` fetches."""
KEYS = {
    "Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "ArrowLeft": "\ue012", "ArrowUp": "\ue013",
    "ArrowRight": "\ue014", "ArrowDown": "\ue015",
}  # fmt: skip
"""The code points of keys (WebDriver, 17.4.2)."""


class Browser:
    """A window; every message of its console and every request of its pages is kept."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"
        options = {
            "binary": BROWSER,
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"],
        }
        wanted = {
            "browserName": "chrome", "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }  # fmt: skip
        made = self._post("/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base += f"/session/{made['sessionId']}"

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._ask(path, json.dumps(body).encode())

    def _ask(self, path: str, body: bytes | None = None, method: str | None = None) -> Any:
        request = urllib.request.Request(self._base + path, body, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)["value"]

    def open(self, page: Path) -> None:
        """Load a page from the disk."""
        self.go(page.resolve().as_uri())

    def go(self, url: str) -> None:
        """Load a page, and wait until it and its pictures are there."""
        self._post("/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """What a script of the page returns."""
        return self._post("/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str, *arguments: object) -> Any:
        """What a script gives to its last argument, a function."""
        return self._post("/execute/async", {"script": script, "args": list(arguments)})

    def press(self, key: str) -> None:
        """One key, to whatever has the focus."""
        strokes = [{"type": kind, "value": KEYS[key]} for kind in ("keyDown", "keyUp")]
        self._post("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def click(self, x: float, y: float) -> None:
        """A click of the mouse, in pixels of the window."""
        move = {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)}
        strokes = [move, {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._post("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": strokes}]})

    def devtools(self, command: str, **parameters: object) -> Any:
        """A command of the DevTools protocol."""
        return self._post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def size(self, width: int, height: int = 800) -> None:
        """The size of the page's window, in CSS pixels."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def prefers(self, scheme: str = "light", motion: str = "reduce", media: str = "screen") -> None:
        """What the page's media queries answer."""
        features = [("prefers-color-scheme", scheme), ("prefers-reduced-motion", motion)]
        self.devtools(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": k, "value": v} for k, v in features]
        )

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        made = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(made["data"]))

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(self.devtools("Page.printToPDF", printBackground=True)["data"])

    def console(self) -> list[str]:
        """The messages since the last call."""
        return [one["message"] for one in self._post("/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """The URLs that pages asked for since the last call."""
        found = [json.loads(one["message"])["message"] for one in self._post("/se/log", {"type": "performance"})]
        return [one["params"]["request"]["url"] for one in found if one["method"] == "Network.requestWillBeSent"]

    def close(self) -> None:
        """End the session."""
        self._ask("", method="DELETE")


def violations(window: Browser) -> list[str]:
    """What axe-core finds wrong with the page that is open: a rule and the first elements of each."""
    window.run(f"{AXE.read_text(encoding='utf-8')}; window.axe = axe")
    found = window.wait(
        "const [tags, done] = arguments;"
        "axe.run({resultTypes: ['violations'], runOnly: tags}).then("
        "(all) => done(all.violations), (error) => done(String(error)))",
        ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    )
    assert isinstance(found, list), found
    return [f"{one['id']}: {one['help']}: {[node['html'] for node in one['nodes'][:3]]}" for one in found]


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that ends with its driver."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert DRIVER
    process = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                Event().wait(0.05)
        made = Browser(port)
        try:
            yield made
        finally:
            made.close()
    finally:
        process.terminate()
        process.wait()
