"""The README of an exported model."""

from __future__ import annotations

import json
from collections.abc import Sequence

from heterps_runtime.checkpoint.manifest import CheckpointManifest, TableRecord

__all__ = ["receiver_readme"]

_WHOLE = """\
# A model trained with HeterPS

Trained for {step} steps, {samples} samples. It needs PyTorch, safetensors and the model's own code,
not HeterPS:

```python
from safetensors.torch import load_file

{build}
model.load_state_dict(load_file("model.safetensors"), strict={strict})
model.eval()
```

Values become ids as `model.json` says under "hashing".
"""

_BY_ROWS = """\

Tables too large for one tensor are in `tables/`: `ids` are sorted, and `rows` has one row for each id. Only trained
rows are included. Any other id has its initial value, drawn as `model.json` says under "init".

```python
table = load_file("{file}")
row = dict(zip(table["ids"].tolist(), table["rows"]))  # id -> tensor ({dim},)
```

| table | rows of | dim | file |
|---|---|---|---|
"""


def receiver_readme(manifest: CheckpointManifest, by_rows: Sequence[tuple[TableRecord, str]]) -> str:
    """The text of the README.

    Args:
        manifest: the exported checkpoint.
        by_rows: tables exported as ids and rows, with their files.
    """
    build = "model = ...  # your own module, built as for training"
    module, _, name = str(manifest.fingerprint.get("model.entrypoint", "")).partition(":")
    if name:
        arguments = manifest.fingerprint.get("model.arguments") or {}
        text = f"**{_python(arguments)}" if arguments else ""
        build = f"from {module} import {name}\n\nmodel = {name}({text})"
    text = _WHOLE.format(step=manifest.step, samples=manifest.samples, build=build, strict=not by_rows)
    if by_rows:
        text += _BY_ROWS.format(file=by_rows[0][1], dim=by_rows[0][0].dim)
        text += "".join(f"| `{t.name}` | {t.num_embeddings} | {t.dim} | `{file}` |\n" for t, file in by_rows)
    return text


def _python(arguments: object) -> str:
    """JSON values as a Python expression."""
    return repr(json.loads(json.dumps(arguments)))
