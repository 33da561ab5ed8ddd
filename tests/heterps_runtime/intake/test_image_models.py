"""The image models of examples/balancenet: layers, legal cuts, and that a job trains one of them on real images."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.intake import LayeredModel, build_model, trace_model
from tests.heterps_runtime.helpers.jobs import run_job

EXAMPLE = Path(__file__).parents[3] / "examples" / "balancenet"
prepare = importlib.import_module("examples.balancenet.prepare")
CASES = [  # name, layers, parameters, layers whose cut is tried
    ("cnn", 10, 136_586, range(9)),
    ("alexnet", 21, 2_847_434, (0, 2, 12, 13, 16)),
    ("vgg16", 39, 15_243_978, (1, 4, 30, 31)),
    ("resnet50", 22, 23_522_250, (1, 3, 4, 10, 19, 20)),
]


@pytest.mark.parametrize(("name", "layers", "parameters", "cuts"), CASES, ids=[case[0] for case in CASES])
def test_models_can_be_cut_between_blocks(name: str, layers: int, parameters: int, cuts: range) -> None:
    module = build_model(f"examples.balancenet.networks:{name}", {}, 0, torch.float32)
    model: LayeredModel = trace_model(module, ["image"])
    assert (len(model.layers), model.inputs, model.tables) == (layers, ("image",), ())
    assert sum(p.numel() for p in module.parameters()) == parameters
    images = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = module.eval()(images)
        for cut in cuts:
            first, second = model.stage(0, cut).train(False), model.stage(cut + 1, layers - 1).train(False)
            between = first.forward({"image": images}, [])
            assert len(between) == 1, "a residual sum never crosses a cut"
            torch.testing.assert_close(second.forward(between, [])["logits"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [case[0] for case in CASES])
def test_manifests_are_valid(name: str) -> None:
    spec = load_manifest(EXAMPLE / f"{name}.yaml").job["spec"]
    assert spec["model"]["entrypoint"] == f"networks:{name}"
    assert spec["data"]["tensors"] == [
        {"name": "image", "shape": [1, 32, 32], "dtype": "uint8", "scale": "0.003921568627", "offset": "0"}
    ]


@pytest.mark.slow
def test_the_cnn_reads_held_out_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's job, with its own data and settings, in two stages."""
    prepare.write(tmp_path / "data", "test", prepare.digits())
    (tmp_path / "work").mkdir()
    document = load_manifest(EXAMPLE / "cnn.yaml").run_configuration(tmp_path / "work", [])
    spec = document["job"]["spec"]
    spec["data"] |= {"train": str(tmp_path / "data" / "train"), "evaluation": str(tmp_path / "data" / "test")}
    monkeypatch.setattr(sys, "path", [str(EXAMPLE), *sys.path])
    status = run_job(document, [("cpu", 5, 1), ("cpu", 9, 1)], 1)
    assert status["phase"] == "Succeeded", status["error"]
    assert status["samples"] == 10 * 1437
    assert status["evaluation"]["samples"] == 360
    assert status["evaluation"]["accuracy"] > 0.95
