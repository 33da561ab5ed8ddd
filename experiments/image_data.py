"""The images of BalanceNet's experiment: the digits of `examples/balancenet`, and the jobs on them."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import yaml

from experiments.framework import ROOT

__all__ = ["BATCHES", "EXAMPLE", "MODELS", "digits", "folder_of_images", "manifest_documents"]

EXAMPLE = ROOT / "examples" / "balancenet"
MODELS = {"cnn": "baseline CNN", "alexnet": "AlexNet", "resnet50": "ResNet50", "vgg16": "VGG16"}  # as in the paper
# Samples of a step. More than in the example, except for VGG16, so that a step is long beside the period of a limit on
# cores (CNN, AlexNet) and beside the transfer of its parameters (ResNet50).
BATCHES = {"cnn": 704, "alexnet": 352, "resnet50": 128, "vgg16": 64}
_IMAGES = 1408  # for training, of 1,437: a multiple of all these, so that all steps are alike
_CACHE = ROOT / ".cache" / "experiments" / "images"


@functools.cache
def _prepare() -> Any:
    """The example's script. Not by its name, which scripts of other examples have, too."""
    spec = importlib.util.spec_from_file_location("balancenet_prepare", EXAMPLE / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digits() -> dict[str, Any]:
    """Split -> (images, labels). From then on the example's models can be imported, too."""
    if str(EXAMPLE) not in sys.path:
        sys.path.append(str(EXAMPLE))
    splits: dict[str, Any] = _prepare().digits()
    images, labels = splits["train"]
    return splits | {"train": (images[:_IMAGES], labels[:_IMAGES])}


def folder_of_images() -> Path:
    """A folder with the images as files, written if need be."""
    splits, prepare = digits(), _prepare()
    folder, recipe = _CACHE / "data", f"digits {_IMAGES}"
    if prepare.read_marker(folder).get("recipe") != recipe:
        prepare.write(folder, recipe, splits)
    return folder


def manifest_documents(model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pool and the job of the example's manifest, with the batch of this experiment."""
    pool, job = yaml.safe_load_all((EXAMPLE / f"{model}.yaml").read_text())
    job["spec"]["training"]["globalBatchSize"] = BATCHES[model]
    return pool, job
