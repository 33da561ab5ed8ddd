"""Times of cuts: activations to the next stage and gradients back, over the sockets of workers."""

from __future__ import annotations

import threading
import time

import torch
import zmq

from heterps_runtime.profiler.layers import Cut
from heterps_runtime.wire.messages import Backward, Forward
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.transport import TokenAuthority, listen_socket
from heterps_runtime.worker.exchange.peers import Downstream, Upstream
from heterps_runtime.worker.tensors import arrays_of, tensor_of

__all__ = ["TransferProbe"]

_HOST = "127.0.0.1"
_PATIENCE_MILLISECONDS = 60_000
_GENERATION = 0  # there is only one


class TransferProbe:
    """Both sides of a stage boundary; activations are answered with gradients.

    Args:
        device: of the tensors on both sides.
        security: of the job's links.
    """

    def __init__(self, device: torch.device, security: LinkSecurity) -> None:
        self._device = device
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authority = TokenAuthority(self._context, security)
        socket, address = listen_socket(self._context, _HOST, security)
        self._upstream = Upstream(socket)
        self._downstream = Downstream(self._context, security, "profile", _GENERATION, [address])
        self._cut = Cut((), ())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="transfers", daemon=True)
        self._thread.start()

    def measure(self, cut: Cut) -> tuple[float, float]:
        """Seconds and processor seconds (of both sides) for a micro-batch there and back, from device to device."""
        self._cut = cut
        tensors = [torch.from_numpy(a).to(self._device) for a in cut.forward]
        began, used = time.perf_counter(), time.process_time()
        arrays = arrays_of({str(i): t for i, t in enumerate(tensors)})
        self._downstream.send(0, Forward(_GENERATION, 0, True, 0, 0, arrays, (), ()))
        while not (messages := self._downstream.poll()):
            self._downstream.pollables[0].poll(_PATIENCE_MILLISECONDS)
        for array in messages[0].gradients.values():
            tensor_of(array, self._device)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - began, time.process_time() - used

    def close(self) -> None:
        """End the other side and the sockets."""
        self._ended.set()
        self._thread.join()
        self._downstream.close()
        self._upstream.socket.close(linger=0)
        self._context.term()

    def _answer(self) -> None:
        while not self._ended.is_set():
            self._upstream.socket.poll(100)
            for sender, message in self._upstream.poll(_GENERATION):
                received = [tensor_of(a, self._device) for a in message.tensors.values()]
                # Gradients have the shapes of their activations; the values do not matter.
                by_shape = {(tuple(t.shape), str(t.dtype)): t for t in received}
                gradients = [by_shape[tuple(a.shape), f"torch.{a.dtype}"] for a in self._cut.backward]
                arrays = arrays_of({str(i): g for i, g in enumerate(gradients)})
                self._upstream.send(sender, Backward(_GENERATION, 0, 0, arrays))
