"""Planning: profiles, cost model, provisioning, exact optimum, batch balancing. Pure, without I/O."""

from __future__ import annotations

from heterps_planner.balancing import BatchController, Worker, divide
from heterps_planner.errors import DeadlineError, PlannerError, ProblemError, TooLargeError, UnknownNameError
from heterps_planner.methods import METHODS
from heterps_planner.model.problem import Layer, LayerTimes, Pool, Problem
from heterps_planner.model.servers import ParameterServer
from heterps_planner.planning import plan
from heterps_planner.plans.explain import Explanation, explain
from heterps_planner.plans.frontier import FrontierPoint, frontier
from heterps_planner.plans.plan import Infeasible, Plan, PlanStage, Servers
from heterps_planner.scenarios.evaluate import evaluate

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
