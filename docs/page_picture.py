# ruff: noqa: INP001  # a script beside what it writes, not a package
"""Creates docs/images/plan-page.png, a picture of the page that `heterps plan --html` writes.

    python docs/page_picture.py [PROBLEM]

The plan is that of a measured problem, so the picture is the same on every machine, except for the planning time.
Chromium is needed only for this picture and for tests/heterps_operator/page/test_browser.py.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT = 1060, 1560  # pixels; the picture ends below the frontier


def main() -> None:
    """Write the page and take its picture."""
    parser = argparse.ArgumentParser(description="A picture of the page of a plan.")
    parser.add_argument("problem", nargs="?", default="experiments/profiles/ctrdnn.json", help="problem file")
    problem = ROOT / parser.parse_args().problem
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is not installed: apt-get install chromium")
    heterps = shutil.which("heterps", path=str(Path(sys.executable).parent)) or "heterps"
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        page = Path(folder) / "plan.html"
        subprocess.run([heterps, "plan", "--problem", problem, "--quiet", "--html", page], check=True)
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/p",
        ]
        target = ROOT / "docs/images/plan-page.png"
        taking = [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={target}", page.as_uri()]
        subprocess.run([browser, *options, *taking], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
