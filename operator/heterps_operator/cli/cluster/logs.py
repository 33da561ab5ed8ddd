"""`heterps logs JOB`: the logs of all pods of a job in one stream."""

from __future__ import annotations

import json
import sys
import zlib
from argparse import Namespace

from rich.text import Text

from heterps_operator.cli.cluster.common import open_client
from heterps_operator.terminal.console import make_console
from heterps_runtime.contract import EXIT_INTERRUPTED, EXIT_OK

__all__ = ["logs"]

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")
_WIDTH = 12  # of the name column; longer names overflow


def logs(arguments: Namespace) -> int:
    """Print the logs of the command line's job; return the exit code.

    Raises:
        ClusterError: there is no such job, or the cluster refused the request.
    """
    client = open_client(arguments)
    console = make_console()
    found = False
    lines = client.logs(arguments.job, role=arguments.role, follow=arguments.follow, tail=arguments.tail)
    try:
        for line in lines:
            found = True
            if arguments.output == "json":
                document = {"process": line.process, "pod": line.pod, "time": line.time, "text": line.text}
                sys.stdout.write(json.dumps(document) + "\n")
            elif console.is_terminal:
                # A process keeps its colour across calls.
                colour = _COLOURS[zlib.crc32(line.process.encode()) % len(_COLOURS)]
                name = Text(f"{line.process:<{_WIDTH}} | ", style=colour)
                console.print(name.append(Text.from_ansi(line.text)), soft_wrap=True, highlight=False)
            else:
                sys.stdout.write(f"{line.process:<{_WIDTH}} | {line.text}\n")
            if arguments.follow:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if not found:
        what = f"pods of role {arguments.role}" if arguments.role else "pods"
        text = f"{arguments.job} has no {what} with a log; logs are deleted with their pods (runPolicy.cleanPodPolicy)"
        make_console(stderr=True).print(text, markup=False, highlight=False)
    return EXIT_OK
