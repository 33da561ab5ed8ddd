"""Method `bayesian`: Bayesian optimisation with a Gaussian process, by Optuna's sampler.

[HeterPS], section 6, compares with "BO" without naming model or parameters. Here every layer is a category with one
value per pool, the model is Optuna's `GPSampler` (Matérn 5/2 kernel, expected improvement), and it learns the logarithm
of the cost, or the graded penalty of infeasible schedules (`Evaluator.scores`). The model sees the single-pool plans
first. Each further schedule requires a fit of the model, which takes about half a second for 16 layers and much longer
for many pools, so the number of schedules is small and the method the slowest. The deadline also aborts a fit; only
loading the packages, some seconds in all, cannot be cut short.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from heterps_planner.errors import MissingPackageError
from heterps_planner.methods.base import Found, Task, answer
from heterps_planner.plans.assignments import Evaluator

__all__ = ["find"]

_RANDOM = 10  # schedules drawn at random before the model is used
_MODELLED = 60  # schedules that the model proposes


class _TimeUpError(Exception):
    """The deadline passed during a fit."""


def find(task: Task, modelled: int = _MODELLED) -> Found:
    """Find a plan by Bayesian optimisation.

    Args:
        task: problem, seed and deadline.
        modelled: schedules that the model proposes at most.

    Raises:
        MissingPackageError: Optuna or torch is not installed.
        DeadlineError: the deadline passed before any plan was found.
    """
    num_layers, num_pools = task.segments.num_layers, task.segments.num_pools
    evaluator = Evaluator(task.segments)
    single = np.repeat(np.arange(num_pools)[:, None], num_layers, axis=1)
    if num_pools == 1:
        evaluator.scores(single)
        task.progress(1.0)
        return answer(evaluator, stopped=False)
    optuna = _load()
    names = [f"layer-{i}" for i in range(num_layers)]
    space = dict.fromkeys(names, optuna.distributions.CategoricalDistribution(list(range(num_pools))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.GPSampler(
            seed=task.seed, n_startup_trials=num_pools + _RANDOM, deterministic_objective=True
        )
    study = optuna.create_study(sampler=sampler)
    for row in single.tolist():
        study.enqueue_trial(dict(zip(names, row, strict=True)))
    total = num_pools + _RANDOM + modelled
    stopped = False
    for number in range(total):
        if task.should_stop():
            stopped = True
            break
        try:
            with _one_thread(), _watch(task.should_stop):
                trial = study.ask(space)
        except _TimeUpError:
            stopped = True
            break
        assignment = np.array([[trial.params[name] for name in names]], dtype=np.intp)
        study.tell(trial, float(evaluator.scores(assignment)[0]))
        task.progress((number + 1) / total)
        if evaluator.num_evaluated == num_pools**num_layers:
            break
    if not stopped:
        task.progress(1.0)
    return answer(evaluator, stopped=stopped)


def _load() -> Any:
    """Import Optuna, which loads torch; no other method needs them."""
    missing = [name for name in ("optuna", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"the method 'bayesian' needs {' and '.join(missing)}: pip install 'heterps[bayesian]', or choose the "
            "method 'genetic'"
        )
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to the calling thread: on such small matrices, threads wait for each other longer than they compute.

    Where other processes use the cores, most of all: each operation then waits for a thread that is not running.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _watch(should_stop: Callable[[], bool]) -> AbstractContextManager[Any]:
    """Return a context in which every torch operation checks the deadline first; Optuna has no hook for it."""
    from torch.overrides import TorchFunctionMode

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if should_stop():
                raise _TimeUpError
            return func(*args, **(kwargs or {}))

    return Watch()
