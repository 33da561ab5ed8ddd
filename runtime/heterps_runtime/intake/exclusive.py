"""One model at a time: building and tracing change state that belongs to the whole process.

Building sets the seed, the default dtype and the constructors of embeddings; torch.fx patches `torch.nn.Module` while
it traces. A process that hosts several members of a job in threads must not mix them.
"""

from __future__ import annotations

import threading

__all__ = ["PROCESS_STATE"]

PROCESS_STATE = threading.RLock()
