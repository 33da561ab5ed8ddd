"""Use the trained model without HeterPS: `python examples/flights/predict.py MODEL_DIRECTORY`.

Loads the weights that `heterps run` exported into the user's own module with plain PyTorch, predicts the held-out
flights, and prints the AUC. Nothing of HeterPS is imported; what a serving system must know is `feature_id` below.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch
import yaml
from flights.model import Flights, build
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent


def feature_id(value: int | str | None) -> int:
    """The id of a feature's value: integers as they are, text by its blake2b hash; `% num_embeddings` gives the row."""
    if isinstance(value, int):
        return value
    return int.from_bytes(hashlib.blake2b((value or "").encode(), digest_size=8).digest(), "little", signed=True)


def table_rows(values: list[int | str | None], num_embeddings: int) -> torch.Tensor:
    """Rows of an embedding table, int64 (N,), for a column's values."""
    rows = {value: feature_id(value) % num_embeddings for value in set(values)}
    return torch.tensor([rows[value] for value in values])


def predict(model: Flights, table: Any, data: dict[str, Any]) -> npt.NDArray[np.float32]:
    """Logits (N,) of all rows of a pyarrow table.

    Args:
        model: the trained module.
        table: the flights.
        data: `spec.data` of job.yaml, for the columns' names and order.
    """
    sizes = {
        path.rsplit(".", 1)[-1]: layer.num_embeddings
        for path, layer in model.named_modules()
        if isinstance(layer, torch.nn.Embedding)
    }
    inputs = {name: table_rows(table[name].to_pylist(), sizes[name]) for name in data["sparse"]}
    inputs["dense"] = torch.from_numpy(np.stack([table[name].to_numpy() for name in data["dense"]], axis=1))
    with torch.inference_mode():
        logits: npt.NDArray[np.float32] = model(**inputs).numpy()
    return logits


def area_under_curve(logits: npt.NDArray[np.float32], labels: npt.NDArray[np.int8]) -> float:
    """The probability that a late flight's logit is above a punctual one's; ties count half."""
    _, inverse, counts = np.unique(logits, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # from 1; equal logits share their mean rank
    positives = int((labels == 1).sum())
    pairs = positives * (len(labels) - positives)
    return float((ranks[labels == 1].sum() - positives * (positives + 1) / 2) / pairs)


def main() -> None:
    """Load, predict, print."""
    parser = argparse.ArgumentParser(description="Predict the held-out flights with a trained model, in plain PyTorch.")
    parser.add_argument("model", type=Path, help="the folder with model.safetensors, as `heterps run` prints it")
    folder: Path = parser.parse_args().model

    documents = yaml.safe_load_all((HERE / "job.yaml").read_text())
    spec = next(d["spec"] for d in documents if d["kind"] == "HeterPSJob")
    model = build(**spec["model"]["arguments"])
    model.load_state_dict(load_file(folder / "model.safetensors"))
    model.eval()

    table = pq.read_table(HERE / spec["data"]["evaluation"])
    labels = table[spec["data"]["label"]].to_numpy()
    logits = predict(model, table, spec["data"])
    auc = area_under_curve(logits, labels)
    print(f"held-out AUC {auc:.4f} over {len(labels):,} flights")
    worst = np.argsort(logits)[-3:][::-1]
    chance = 1 / (1 + np.exp(-logits[worst]))
    for row, p in zip(worst.tolist(), chance, strict=True):
        flight = table.slice(row, 1).to_pylist()[0]
        name = f"{flight['carrier']}{flight['flight']} {flight['origin']} to {flight['dest']}"
        print(f"  {name}: {p:.0%} likely late, {'was late' if flight['late'] else 'was in time'}")


if __name__ == "__main__":
    main()
