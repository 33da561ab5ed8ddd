"""Model intake: from a `torch.nn.Module` to stages that can be trained separately.

    module = build_model("flights.model:build", {"dim": 16}, seed=0, dtype=torch.float32)
    model = trace_model(module)           # layers, tables, features
    stage = model.stage(0, 3)             # layers 0..3 as a module
    loss = resolve_loss("torch.nn.functional:binary_cross_entropy_with_logits")

Tables are never created: a stage says which ids it needs (`StageModule.ids`), and receives the lookups.
"""

from heterps_runtime.intake.build import build_model
from heterps_runtime.intake.errors import LabelError
from heterps_runtime.intake.layers import LayeredModel, trace_model
from heterps_runtime.intake.linear import onednn_is_faster
from heterps_runtime.intake.loss import LossSum, resolve_loss
from heterps_runtime.intake.sites import Site, SiteIds
from heterps_runtime.intake.stage import StageModule

__all__ = [
    "LabelError",
    "LayeredModel",
    "LossSum",
    "Site",
    "SiteIds",
    "StageModule",
    "build_model",
    "onednn_is_faster",
    "resolve_loss",
    "trace_model",
]
