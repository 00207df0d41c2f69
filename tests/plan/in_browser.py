"""The page in a real browser, headless: `make plan-tests`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from .test_answer import plan

BROWSER = next((b for b in ("chromium", "chromium-browser", "google-chrome") if shutil.which(b)), None)


@pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium")
def test_the_page_is_drawn(tmp_path: Path) -> None:
    page, picture = tmp_path / "plan.html", tmp_path / "plan.png"
    page.write_text(plan().to_html())
    assert BROWSER is not None
    common = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND"]
    shot = subprocess.run(
        [*common, *offline, f"--screenshot={picture}", "--window-size=1100,2400", page.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert picture.exists(), shot.stderr
    image = Image.open(picture).convert("RGB")
    colours = {c for _, c in image.getcolors(maxcolors=1 << 24) or []}
    for drawn in ((0x2E, 0x6F, 0xDB), (0xE0, 0x7A, 0x1F), (0xD9, 0x2D, 0x20)):  # arguments, temporaries, the limit
        assert drawn in colours
    dom = subprocess.run([*common, *offline, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120)
    assert dom.stdout.count("<svg") == 3
