#!/usr/bin/env python3
"""Opens pages in headless Chromium and says what is wrong with them. Nothing but Python's own library is needed.

Usage: browser_check.py CHROMIUM SCREENSHOT_DIRECTORY PAGE.. [--text PAGE STRING]..

Every page is opened at 400, 720, 1200 and 1600 pixels, light and dark, and once more as it is printed. It is an error if
- the console says anything, or a request goes beyond the page itself;
- anything reaches beyond the window, unless it scrolls in a box of its own that the keyboard can reach;
- the page has scripts, a picture without a name, a table without a caption;
- a string of `--text` is not to be read in the page as it is.
Screenshots are kept, a file for each page, width and scheme. A browser that cannot even open an empty page is as good as
none: that is said, and no error.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Width and scheme; on paper of A4, between its margins, whatever the screen likes.
WINDOWS = [(width, mode) for width in (400, 720, 1200, 1600) for mode in ("light", "dark")] + [(680, "paper")]
TIMEOUT_S = 120
# A browser that ends by itself has said nothing about the pages: they are opened again.
ATTEMPTS = 3

# What reaches beyond the window although no box around it scrolls, and what a reader could not reach.
FAULTS = """(() => {
  const faults = [], width = WIDTH, name = e => e.tagName.toLowerCase() + (e.className.baseVal ?? e.className ?? '')
  for (const d of document.querySelectorAll('details')) d.open = true
  const root = document.scrollingElement
  if (root.scrollWidth > width) faults.push(`the page is ${root.scrollWidth} wide, the window ${width}`)
  for (const e of document.querySelectorAll('body *')) {
    if (e.closest('.skip') || e.closest('.scroll') && !e.matches('.scroll')) continue
    const box = e.getBoundingClientRect()
    if (box.width > 0 && (box.right > width + 0.5 || box.left < -0.5))
      faults.push(`${name(e)} reaches from ${box.left} to ${box.right}: ${e.textContent.slice(0, 60)}`)
  }
  for (const e of document.querySelectorAll('svg text')) {
    const own = e.getBoundingClientRect(), box = e.ownerSVGElement.getBoundingClientRect()
    if (own.width > 0 && (own.left < box.left - 1 || own.right > box.right + 1 || own.top < box.top - 1 || own.bottom > box.bottom + 1))
      faults.push(`a label is outside its chart: ${e.textContent.trim()}`)
  }
  for (const e of document.querySelectorAll('.scroll'))
    if (e.tabIndex < 0 || !document.getElementById(e.getAttribute('aria-labelledby'))) faults.push('a box without keyboard or name')
  for (const e of document.querySelectorAll('svg'))
    if (!e.querySelector('title') || e.getAttribute('role') !== 'img') faults.push('a chart without a name')
  for (const e of document.querySelectorAll('table')) if (!e.caption) faults.push('a table without a caption')
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id)
  if (new Set(ids).size !== ids.length) faults.push('an id is there twice')
  let level = 0
  for (const e of document.querySelectorAll('h1,h2,h3,h4')) {
    const own = +e.tagName[1]
    if (own > level + 1) faults.push(`a heading of level ${own} below one of level ${level}: ${e.textContent}`)
    level = own
  }
  if (document.scripts.length > 0 || document.querySelector('img,iframe,object,link:not([rel=icon])')) faults.push('foreign elements')
  const background = getComputedStyle(document.body).backgroundColor
  return { faults, background, height: root.scrollHeight, text: document.body.textContent }
})()"""


class BrowserGone(Exception):
    """The browser ended by itself, which says nothing about the pages.

    `runs`: whether it had opened an empty page before.
    """

    runs = False


class Browser:
    """Chromium behind a pipe: JSON messages that end in a zero byte."""

    def __init__(self, program, profile):
        # The browser reads on 3 and writes on 4.
        to_read, self.to_write = os.pipe()
        self.to_hear, to_say = os.pipe()

        def pipes():
            # Copies beyond 4 first, so that neither hides the other.
            a, b = os.dup(to_read), os.dup(to_say)
            a, b = os.dup2(a, 33, False), os.dup2(b, 34, False)
            os.dup2(a, 3)
            os.dup2(b, 4)

        args = [program, "--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--hide-scrollbars",
                "--no-first-run", "--disable-extensions", "--disable-background-networking",
                "--disable-component-update", f"--user-data-dir={profile}", "--disable-dev-shm-usage"]
        if os.geteuid() == 0:
            args.append("--no-sandbox")
        # Whatever it keeps at home goes where the profile is: the user's home may not be there to write to.
        self.log = Path(profile, "log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(args, preexec_fn=pipes, close_fds=False, stderr=log, stdout=log,
                                            env={**os.environ, "HOME": str(profile), "XDG_CONFIG_HOME": str(profile)})
        os.close(to_read)
        os.close(to_say)
        self.rest, self.last, self.events = b"", 0, []

    def receive(self):
        while b"\0" not in self.rest:
            part = os.read(self.to_hear, 1 << 16)
            if not part:
                raise BrowserGone(self.last_words())
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        try:
            os.write(self.to_write, json.dumps(message).encode() + b"\0")
        except BrokenPipeError:
            raise BrowserGone(self.last_words()) from None
        while True:
            answer = self.receive()
            if answer.get("id") == self.last:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait(self, method, session):
        while not any(e.get("method") == method and e.get("sessionId") == session for e in self.events):
            self.events.append(self.receive())

    def last_words(self):
        """How it ended, and the end of what it wrote."""
        try:
            code = self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        return f"the browser went away, exit code {code}:\n{self.log.read_text(errors='replace')[-4000:]}"

    def close(self):
        """Ends it, however it is; nothing about the pages depends on how it goes."""
        try:
            self.call("Browser.close")
            self.process.wait(timeout=30)
        except (BrowserGone, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        for pipe in (self.to_write, self.to_hear):
            os.close(pipe)


def check(browser, page, width, scheme, texts, shots):
    """Faults of one page in one window."""
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    call = lambda method, **params: browser.call(method, session, **params)
    for domain in ("Page", "Runtime", "Log", "Network"):
        call(f"{domain}.enable")
    # Not as a phone: that would zoom out until all is inside the window.
    call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    is_paper = scheme == "paper"
    features = [{"name": "prefers-color-scheme", "value": "dark" if is_paper else scheme}]
    call("Emulation.setEmulatedMedia", media="print" if is_paper else "screen", features=features)
    browser.events.clear()
    url = page.resolve().as_uri()
    call("Page.navigate", url=url)
    browser.wait("Page.loadEventFired", session)
    result = call("Runtime.evaluate", expression=FAULTS.replace("WIDTH", str(width)), returnByValue=True)
    if "exceptionDetails" in result:
        sys.exit(f"{page}: {result['exceptionDetails']}")
    found = result["result"]["value"]
    faults = list(found["faults"])
    faults += [f"not to be read: {text!r}" for text in texts if text not in found["text"]]
    height = min(found["height"], 16000)
    shot = call("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1})
    (shots / f"{page.stem}-{width}-{scheme}.png").write_bytes(base64.b64decode(shot["data"]))
    white = "rgb(255, 255, 255)"
    if (found["background"] == white) != (scheme != "dark"):
        faults.append(f"the background is {found['background']}")
    for event in browser.events:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.consoleAPICalled":
            faults.append(f"console: {params['args']}")
        elif method == "Runtime.exceptionThrown":
            faults.append(f"exception: {params['exceptionDetails']}")
        elif method == "Log.entryAdded":
            faults.append(f"log: {params['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            wanted = params["request"]["url"]
            if wanted != url and not wanted.startswith("data:"):
                faults.append(f"request: {wanted}")
    call("Page.close")
    return faults


def check_all(program, shots, pages, texts):
    """Number of faults of all pages."""
    n_faults = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        is_empty_open = False

        def give_up(*_):
            browser.process.kill()
            raise BrowserGone(f"no answer of the browser within {TIMEOUT_S} seconds")

        signal.signal(signal.SIGALRM, give_up)
        try:
            signal.alarm(TIMEOUT_S)
            empty = browser.call("Target.createTarget", url="about:blank")["targetId"]
            browser.call("Target.closeTarget", targetId=empty)
            is_empty_open = True
            for page in pages:
                own = [text for of, text in texts if of == page]
                for width, scheme in WINDOWS:
                    signal.alarm(TIMEOUT_S)
                    faults = check(browser, page, width, scheme, own, shots)
                    n_faults += len(faults)
                    print(f"{page.name} at {width}, {scheme}: {len(faults)} faults")
                    for fault in faults[:20]:
                        print(f"  {fault}")
        except BrowserGone as gone:
            gone.runs = is_empty_open
            raise
        finally:
            signal.alarm(0)
            browser.close()
    return n_faults


def main():
    args, texts = sys.argv[1:], []
    while "--text" in args:
        at = args.index("--text")
        texts.append((Path(args[at + 1]), args[at + 2]))
        del args[at:at + 3]
    program, shots, pages = args[0], Path(args[1]), [Path(page) for page in args[2:]]
    shots.mkdir(parents=True, exist_ok=True)
    runs = False
    for attempt in range(ATTEMPTS):
        try:
            sys.exit(1 if check_all(program, shots, pages, texts) else 0)
        except BrowserGone as gone:
            runs |= gone.runs
            print(f"attempt {attempt + 1} of {ATTEMPTS}: {gone}", flush=True)
            time.sleep(2)
    if runs:
        sys.exit(f"the browser ended by itself {ATTEMPTS} times")
    print(f"{program} does not run here: the pages were not opened")


if __name__ == "__main__":
    main()
