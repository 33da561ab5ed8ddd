"""The code of a submission: where it is kept, and in which form the job names it (docs/decisions/0033-code.md)."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps_operator.addresses import below, is_uri
from heterps_operator.client.packing import PackedCode, pack
from heterps_operator.client.revisions import PREFIX, read_revision, resolve
from heterps_operator.documents import Json
from heterps_operator.errors import ClusterError, UsageError
from heterps_operator.formatting import format_bytes
from heterps_operator.kubernetes.names import code_config_name, code_labels
from heterps_runtime.contract import API_VERSION, CODE_FILE

__all__ = ["BroughtCode", "bring_code", "config_map", "missing_module", "owned_by", "upload"]

# A ConfigMap holds 1 MiB; with room for what others add to it.
_MOST_IN_CONFIG_MAP = 768 * 1024


@dataclass(frozen=True)
class BroughtCode:
    """Code that a submission brings along."""

    spec: dict[str, Any]  # spec.code
    packed: PackedCode | None = None  # None: a repository has it
    folder: str | None = None  # of a store, for an archive

    def in_place_of(self, written: Json) -> dict[str, Any]:
        """Return `spec.code` for a job that already has one: its Secret stays with the repository that it is for."""
        git, before = self.spec.get("git"), written.get("git") or {}
        if git is None or "secretName" not in before or before.get("repository") != git["repository"]:
            return self.spec
        return {"git": {**git, "secretName": before["secretName"]}}


def bring_code(source: str | Path, checkpoint_path: str, store: str | None = None) -> BroughtCode:
    """Pack a folder, or look up a revision, and decide where it is kept. Nothing is sent.

    Args:
        source: a folder, or `git+ADDRESS@REVISION`.
        checkpoint_path: `spec.checkpoint.path` of the job.
        store: address where archives are kept; None: a ConfigMap or, if it is too large, below the checkpoints.

    Raises:
        UsageError: it cannot be packed, or there is no place for it.
    """
    if str(source).startswith(PREFIX):
        if store is not None:
            raise UsageError("--code-store: is for folders, a repository keeps its code itself; leave it out")
        return BroughtCode(resolve(read_revision(str(source))))
    packed = pack(Path(source))
    if store is None and len(packed.data) <= _MOST_IN_CONFIG_MAP:
        return BroughtCode({"configMap": {"name": code_config_name(packed.sha256), "sha256": packed.sha256}}, packed)
    if store is None:
        if not is_uri(checkpoint_path) or checkpoint_path.startswith("file:"):
            raise UsageError(
                f"--code {source}: has {format_bytes(len(packed.data))} packed, more than a ConfigMap may hold "
                f"({format_bytes(_MOST_IN_CONFIG_MAP)}), and spec.checkpoint.path is no object store that could keep "
                f"it; the biggest files are {packed.biggest()}; exclude some in .heterpsignore, or say "
                "--code-store s3://BUCKET/FOLDER"
            )
        store = checkpoint_path
    elif not (is_uri(store) or store.startswith("/")):
        raise UsageError(f"--code-store {store}: must be an address such as s3://bucket/folder, or an absolute path")
    folder = below(store, "code")
    uri = below(folder, f"{packed.sha256}.zip")
    return BroughtCode({"archive": {"uri": uri, "sha256": packed.sha256}}, packed, folder)


def missing_module(code: BroughtCode, entrypoint: str) -> str | None:
    """Say that a folder lacks the model's module, which the image may have; None if it is there or cannot be known.

    Args:
        code: the code.
        entrypoint: `spec.model.entrypoint`.
    """
    if code.packed is None:
        return None
    module = entrypoint.partition(":")[0].partition(".")[0]
    if any(name == f"{module}.py" or name.startswith(f"{module}/") for name, _ in code.packed.files):
        return None
    fix = f"name the folder that holds {module}.py or {module}/, unless the image has it"
    return f"--code {code.packed.folder}: has no module {module}, which spec.model.entrypoint imports; {fix}"


def config_map(code: BroughtCode, namespace: str) -> dict[str, Any]:
    """Build the ConfigMap of code. It never changes: other code has another name."""
    assert code.packed is not None
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": code.spec["configMap"]["name"], "namespace": namespace, "labels": code_labels()},
        "immutable": True,
        "binaryData": {CODE_FILE: b64encode(code.packed.data).decode()},
    }


def owned_by(item: Json, job: Json) -> dict[str, Any]:
    """Return the ConfigMap with a job among its owners: it is deleted with the last of them.

    The owner is not its controller, and does not wait for its deletion: that would need rights that users lack.
    """
    metadata = job["metadata"]
    owner = {"apiVersion": API_VERSION, "kind": "HeterPSJob", "name": metadata["name"], "uid": metadata["uid"]}
    return {**item, "metadata": {**item["metadata"], "ownerReferences": [owner]}}


def upload(code: BroughtCode) -> bool:
    """Write the archive to its store unless it is there; return whether it was written.

    Raises:
        ClusterError: the store cannot be reached or refuses.
    """
    assert code.packed is not None
    assert code.folder is not None
    address = code.spec["archive"]["uri"].partition("?")[0]
    try:
        # Imported here: only uploads need pyarrow, which the operator's image lacks.
        from heterps_runtime.storage import Storage, StorageAddressError, StorageError
    except ImportError as error:
        text = f"uploading code to {address} needs pyarrow: pip install pyarrow, or keep the code smaller"
        raise ClusterError("NoPyarrow", text) from error
    name = f"{code.packed.sha256}.zip"
    try:
        storage = Storage.open(code.folder)
        if storage.size(name) == len(code.packed.data):
            return False
        storage.write_atomic(name, code.packed.data)
    except (StorageAddressError, StorageError) as error:
        fix = "check the address and your credentials (for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)"
        raise ClusterError("CodeStore", f"uploading code to {address}: {error}; {fix}") from error
    return True
