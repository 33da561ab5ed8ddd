# ruff: noqa: INP001  # a script beside what it writes, not a package
"""Creates the terminal pictures in docs/images from a real run of `heterps run`.

    python docs/terminal_picture.py [JOB]

The command runs in a pseudo terminal, so it draws as on a real one; a terminal emulator (pyte) keeps the screen, and
two screens become SVG files: the one in the middle of training, and the last one. pyte is needed only for these
pictures and is not a dependency of the project: `python -m pip install pyte` first.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import Any

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
COLUMNS, LINES = 104, 34
# rich's own template with locally installed fonts: a picture should load nothing from the network.
TEMPLATE = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def rows_of(screen: Any) -> list[Text]:
    """Return the screen as styled lines, without empty ones at the end."""
    rows = []
    for y in range(screen.lines):
        line = Text()
        for x in range(screen.columns):
            cell = screen.buffer[y][x]
            if not cell.data:
                continue  # the second half of a wide character
            foreground, background = (None if c == "default" else rich_colour(c) for c in (cell.fg, cell.bg))
            style = Style(
                color=foreground, bgcolor=background, bold=cell.bold, italic=cell.italics, reverse=cell.reverse
            )
            line.append(cell.data, style)
        line.rstrip()
        rows.append(line)
    while rows and not rows[-1].plain:
        rows.pop()
    return rows


def rich_colour(name: str) -> str:
    """Return rich's name of an emulator colour, or six hexadecimal digits."""
    if len(name) == 6 and all(c in "0123456789abcdef" for c in name):
        return f"#{name}"
    return name.replace("brown", "yellow").replace("bright", "bright_")


def run(command: list[str], folder: str) -> tuple[list[Text], list[Text]]:
    """Run a command in a terminal; return the screen in the middle of training, and the last one."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    training: list[list[Text]] = []
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux returns EIO when the last process has closed its end
            break
        if not chunk:
            break
        stream.feed(chunk)
        if any("· Training" in line for line in screen.display):
            rows = rows_of(screen)
            if rows[-1].plain.startswith("╰"):  # a complete frame
                training.append(rows)
    os.close(ours)
    if process.wait():
        sys.exit(f"the run ended with {process.returncode}:\n" + "\n".join(screen.display))
    if not training:
        sys.exit("the run was over before a picture of it could be taken")
    return training[len(training) * 2 // 3], rows_of(screen)


def save(rows: list[Text], title: str, path: Path) -> None:
    """Write lines of a terminal as an SVG file."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        for row in rows:
            console.print(row, no_wrap=True, crop=True)
    # A fixed id, so that the file changes only with the picture.
    svg = console.export_svg(title=title, theme=MONOKAI, code_format=TEMPLATE, unique_id="terminal")
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def main() -> None:
    """Take both pictures."""
    parser = argparse.ArgumentParser(description="Pictures of a run at a terminal.")
    parser.add_argument("job", nargs="?", default="examples/flights/job.yaml", help="job file")
    job = parser.parse_args().job
    command = shutil.which("heterps", path=str(Path(sys.executable).parent)) or "heterps"
    with tempfile.TemporaryDirectory(prefix="flights-") as folder:
        # A separate work directory, with the command shown as users type it.
        training, report = run([command, "run", str((ROOT / job).resolve())], folder)
    prompt = Text.assemble(("$ ", "bold green"), f"heterps run {job}")
    save([prompt, *training], "heterps run, in the middle of training", ROOT / "docs/images/demo.svg")
    save([prompt, *report], "heterps run, at the end", ROOT / "docs/images/report.svg")


if __name__ == "__main__":
    main()
