"""Pure planning: profiles, cost model, provisioning, exact optimum, batch balancing. No I/O is done here."""

from __future__ import annotations

from heterps_planner.balancing import BatchController, Worker, divide
from heterps_planner.errors import DeadlineError, PlannerError, ProblemError, TooLargeError, UnknownNameError
from heterps_planner.evaluate import evaluate
from heterps_planner.explain import Explanation, explain
from heterps_planner.frontier import FrontierPoint, frontier
from heterps_planner.methods import METHODS
from heterps_planner.plan import Infeasible, Plan, PlanStage, Servers
from heterps_planner.planning import plan
from heterps_planner.problem import Layer, LayerTimes, ParameterServer, Pool, Problem

__all__ = [
    "METHODS",
    "BatchController",
    "DeadlineError",
    "Explanation",
    "FrontierPoint",
    "Infeasible",
    "Layer",
    "LayerTimes",
    "ParameterServer",
    "Plan",
    "PlanStage",
    "PlannerError",
    "Pool",
    "Problem",
    "ProblemError",
    "Servers",
    "TooLargeError",
    "UnknownNameError",
    "Worker",
    "divide",
    "evaluate",
    "explain",
    "frontier",
    "plan",
]
