"""A page as a reader meets it: in Debian's chromium, without a window."""

import json
import re
import shutil
import subprocess
from html import escape, unescape

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
NO_CHROMIUM = "there is no chromium to show the page"


def browse(tmp_path, page):
    """What the page is after its scripts ran, and what they said on the console."""
    (tmp_path / "report.html").write_text(page)
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000", "--dump-dom"),
            *("--enable-logging=stderr", (tmp_path / "report.html").as_uri()),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def ask(tmp_path, page, script, *, width=1280):
    """Do something on the page as a reader would, and return what `script` returns.

    The page stands in a frame, since a window of chromium is never narrower than 500 pixels.
    """
    page = re.sub("<meta http-equiv[^>]*>", "", page)  # it would forbid the script
    asking = f"parent.document.body.append(JSON.stringify((() => {{{script}}})()))"
    page = page.replace("</body>", f"<script>{asking}</script></body>")
    frame = (
        f'<iframe style="border: 0; width: {width}px; height: 900px" srcdoc="{escape(page)}"></iframe>'
    )
    shown, complaints = browse(tmp_path, f"<!doctype html><body>{frame}")
    assert complaints == []
    return json.loads(unescape(re.search("</iframe>(.*)</body>", shown, re.DOTALL)[1]))
