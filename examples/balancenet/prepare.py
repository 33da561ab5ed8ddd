"""Make the data of the BalanceNet example: `python examples/balancenet/prepare.py`.

The source is scikit-learn's copy of the UCI handwritten digits: 1,797 real images of 8 x 8 pixels, which the package
ships. Each pixel becomes a square of 4 x 4, so that models for 32 x 32 pixels can be trained. The paper's own data,
MNIST, is taken instead if you name its four files:

    python examples/balancenet/prepare.py --mnist FOLDER    # train-images-idx3-ubyte, ... (.gz or unpacked)

Its images of 28 x 28 pixels get a border of 2 pixels. Its test set is held out; of the digits, a fifth is, drawn at
random once. Training rows are shuffled once with a fixed seed, because readers shuffle locally.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import json
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Split = tuple[Images, Labels]

SIDE = 32
SEED = 1797
HELD_OUT = 360  # of the digits
MARKER = "prepared.json"
MNIST = {"train": "train", "test": "t10k"}  # split -> prefix of its files
_IMAGES, _LABELS = 2051, 2049  # magic numbers of idx files with three axes and with one


def digits() -> dict[str, Split]:
    """The handwritten digits of scikit-learn, (n, 32, 32)."""
    from sklearn.datasets import load_digits

    source = load_digits()
    grey = np.rint(source.images * (255 / 16)).astype(np.uint8)  # (n, 8, 8), was 0 to 16
    large = np.kron(grey, np.ones((1, SIDE // 8, SIDE // 8), np.uint8))
    labels = source.target.astype(np.int64)
    order = np.random.default_rng(SEED).permutation(len(labels))
    parts = {"train": order[HELD_OUT:], "test": order[:HELD_OUT]}
    return {split: (large[rows], labels[rows]) for split, rows in parts.items()}


def mnist(folder: Path) -> dict[str, Split]:
    """The images of MNIST's idx files, (n, 32, 32).

    Raises:
        SystemExit: a file is missing or is no idx file of images or labels.
    """
    found: dict[str, Split] = {}
    for split, prefix in MNIST.items():
        images = _idx(folder, f"{prefix}-images-idx3-ubyte", _IMAGES)
        labels = _idx(folder, f"{prefix}-labels-idx1-ubyte", _LABELS)
        if len(images) != len(labels):
            raise SystemExit(
                f"{folder}: {len(images)} images but {len(labels)} labels of {prefix}; download them again"
            )
        border = [(SIDE - side) // 2 for side in images.shape[1:]]
        if min(border) < 0 or any(side + 2 * b != SIDE for side, b in zip(images.shape[1:], border, strict=True)):
            raise SystemExit(f"{folder}: images of {images.shape[1:]} pixels do not fit into {SIDE} x {SIDE} evenly")
        images = np.pad(images, [(0, 0), *((b, b) for b in border)])
        order = np.random.default_rng(SEED).permutation(len(labels)) if split == "train" else np.arange(len(labels))
        found[split] = images[order], labels[order].astype(np.int64)
    return found


def _idx(folder: Path, name: str, magic: int) -> npt.NDArray[np.uint8]:
    """An idx file of bytes: a magic number and the sizes of the axes, big-endian, then the values."""
    paths = [folder / name, folder / f"{name}.gz"]
    path = next((p for p in paths if p.exists()), None)
    if path is None:
        raise SystemExit(f"{folder} has neither {name} nor {name}.gz; name the folder that has MNIST's four files")
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    axes = magic & 0xFF
    if len(data) < 4 * (axes + 1) or struct.unpack(">I", data[:4]) != (magic,):
        raise SystemExit(f"{path} is not an idx file with {axes} axes; download it again")
    shape = struct.unpack(f">{axes}I", data[4 : 4 * (axes + 1)])
    values = np.frombuffer(data, np.uint8, offset=4 * (axes + 1))
    if len(values) != int(np.prod(shape, dtype=np.int64)):
        raise SystemExit(f"{path} is incomplete: {len(values)} values of {shape}; download it again")
    return values.reshape(shape)


def write(output: Path, recipe: str, splits: dict[str, Split]) -> dict[str, Any]:
    """Write both sets as a whole, beside `output` first; returns the marker's content."""
    output.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    done: dict[str, Any] = {"recipe": recipe}
    try:
        for split, (images, labels) in splits.items():
            (new / split).mkdir()
            flat = pa.array(images.reshape(-1))
            table = pa.table(
                {"image": pa.FixedSizeListArray.from_arrays(flat, SIDE * SIDE), "digit": pa.array(labels, pa.int64())}
            )
            pq.write_table(table, new / split / "part-0.parquet", compression="zstd")
            done[split] = len(labels)
        (new / MARKER).write_text(json.dumps(done))
        if output.exists() and read_marker(output).get("recipe") != recipe:  # of other images, or another version
            shutil.rmtree(output)
        with contextlib.suppress(OSError):  # another process was faster
            new.rename(output)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return done


def read_marker(output: Path) -> dict[str, Any]:
    """What the folder was made with; empty if there is none."""
    marker = output / MARKER
    done: dict[str, Any] = json.loads(marker.read_text()) if marker.exists() else {}
    return done


def main() -> None:
    """Write `data/{train,test}/part-0.parquet` beside this file, unless they are up to date."""
    parser = argparse.ArgumentParser(description="Prepare the BalanceNet example: train and test set as parquet.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data", help="default: %(default)s")
    parser.add_argument("--mnist", type=Path, metavar="FOLDER", help="take MNIST's idx files instead of the digits")
    options = parser.parse_args()
    source = f"mnist {options.mnist.resolve()}" if options.mnist else "digits"
    recipe = hashlib.blake2b(Path(__file__).read_bytes() + source.encode(), digest_size=16).hexdigest()
    done = read_marker(options.output)
    if done.get("recipe") == recipe:
        print(f"{options.output} is up to date")
    else:
        done = write(options.output, recipe, mnist(options.mnist) if options.mnist else digits())
    for split in ("train", "test"):
        print(f"{split:5}  {done[split]:6,} images of {SIDE} x {SIDE} pixels")


if __name__ == "__main__":
    main()
