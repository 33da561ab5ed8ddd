"""What encryption costs on one link: `python -m benchmarks.encryption`.

One end sends messages with an array to the other over the loopback, first without, then with encryption, in turns.
The share is that of the same round, so it holds on a busy machine, too. Both ends are threads of one process, each with
ZeroMQ's own thread, which encrypts: the processor time is that of the whole process.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import threading
import time

import numpy as np
import zmq

from heterps_runtime.wire.messages import Forward
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.transport import Connection, Listener, TokenAuthority, listen_socket

SIZES = (64 * 1024, 1024 * 1024, 8 * 1024 * 1024)  # bytes of an array


def transfer(security: LinkSecurity, size: int, total: int) -> tuple[float, float]:
    """Send `total` bytes in messages of `size`; returns seconds and processor seconds."""
    receiving: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sending: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    TokenAuthority(receiving, security)
    listener, address = listen_socket(receiving, "127.0.0.1", security)
    receiver = Listener(listener)
    connection = Connection(sending, address, "sender", security)
    message = Forward(0, 0, True, 0, 0, {"x": np.ones(size // 8)}, (), ())
    ended: list[tuple[float, float]] = []

    def take(count: int) -> None:
        while count:
            listener.poll()
            while receiver.receive() is not None:
                count -= 1
        ended.append((time.perf_counter(), time.process_time()))

    connection.send(message)  # the handshake is over when it arrives
    take(1)
    count = total // size
    thread = threading.Thread(target=take, args=(count,))
    began, used = time.perf_counter(), time.process_time()
    thread.start()
    for _ in range(count):
        connection.send(message)
    thread.join()
    for close in (connection.close, listener.close, sending.term, receiving.term):
        close()
    return ended[-1][0] - began, ended[-1][1] - used


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each size with and without encryption")
    parser.add_argument("--mebibytes", type=int, default=256, help="to send in each measurement")
    options = parser.parse_args()
    total, token = options.mebibytes * 1024 * 1024, secrets.token_hex(16)
    print(
        "array      clear MB/s  encrypted MB/s  share, median (min - max)  processor ns per byte, clear and encrypted"
    )
    for size in SIZES:
        rounds = [
            [transfer(LinkSecurity(token, on), size, total) for on in (False, True)] for _ in range(options.rounds)
        ]
        clear, encrypted = (statistics.median(total / one[i][0] / 1e6 for one in rounds) for i in (0, 1))
        work = [statistics.median(one[i][1] / total * 1e9 for one in rounds) for i in (0, 1)]
        shares = [one[0][0] / one[1][0] for one in rounds]
        print(
            f"{size >> 10:5} KiB {clear:11.0f} {encrypted:15.0f}  {statistics.median(shares):6.2f} "
            f"({min(shares):.2f} - {max(shares):.2f}) {work[0]:20.2f} {work[1]:.2f}"
        )


if __name__ == "__main__":
    main()
