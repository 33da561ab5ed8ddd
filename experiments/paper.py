"""Figures from the paper's text and tables: Liu et al., "HeterPS", FGCS 2023, sections 6.1 and 6.2.

The text does not give the heights of its bars, so its figures are compared by its percentages.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BALANCENET_UPDATE_MILLISECONDS", "FIGURE_4", "FIGURE_5", "FIGURE_8", "FIGURE_11", "TABLE_2", "TABLE_3"]

#: Layers -> seconds of brute force on 2 types, on 4 types (None: not given), and of RL.
TABLE_2: Mapping[int, tuple[float, float | None, float]] = {
    8: (0.068, 11.37, 15.91),
    12: (0.71, 3776.82, 16.83),
    16: (11.74, 1254017.23, 17.16),
    20: (217.26, None, 19.13),
}

#: (model, types) -> method -> seconds.
TABLE_3: Mapping[tuple[str, int], Mapping[str, float]] = {
    ("matchnet", 2): {
        "rl-lstm": 89, "rl-rnn": 168, "bayesian": 1042, "genetic": 51, "greedy": 0.02, "gpu": 0.0003, "cpu": 0.0004,
        "heuristic": 0.002,
    },
    ("matchnet", 32): {
        "rl-lstm": 62, "rl-rnn": 172, "bayesian": 807, "genetic": 68, "greedy": 0.27, "gpu": 0.0004, "cpu": 0.0002,
        "heuristic": 0.0004,
    },
    ("matchnet", 64): {
        "rl-lstm": 55, "rl-rnn": 164, "bayesian": 906, "genetic": 74, "greedy": 0.57, "gpu": 0.0004, "cpu": 0.0003,
        "heuristic": 0.0005,
    },
    ("ctrdnn", 2): {
        "rl-lstm": 58, "rl-rnn": 182, "bayesian": 602, "genetic": 43, "greedy": 0.02, "gpu": 0.0004, "cpu": 0.0002,
        "heuristic": 0.0004,
    },
    ("2emb", 2): {
        "rl-lstm": 18, "rl-rnn": 64, "bayesian": 693, "genetic": 35, "greedy": 0.009, "gpu": 0.0004, "cpu": 0.0002,
        "heuristic": 0.0004,
    },
    ("nce", 2): {
        "rl-lstm": 12, "rl-rnn": 126, "bayesian": 464, "genetic": 23, "greedy": 0.004, "gpu": 0.0003, "cpu": 0.0002,
        "heuristic": 0.0004,
    },
}  # fmt: skip

#: Figure 4: percent by which the paper's provisioning is cheaper than a fixed ratio, at most.
FIGURE_4: Mapping[str, float] = {"static-ratio": 57.9, "static-server-ratio": 48.3}

#: Figures 5 and 6, MATCHNET: (least, most types) -> method -> percent by which it costs more than RL, at most.
FIGURE_5: Mapping[tuple[int, int], Mapping[str, float]] = {
    (1, 16): {
        "rl-rnn": 321.1, "bayesian": 27.9, "genetic": 289.3, "greedy": 291.4, "gpu": 304.2, "cpu": 4137.3,
        "heuristic-gpu-first": 312.3,
    },
    (32, 32): {
        "bayesian": 47.3, "genetic": 1058.0, "greedy": 1058.0, "gpu": 1757.5, "cpu": 19370.1,
        "heuristic-gpu-first": 1794.7,
    },
    (64, 64): {
        "bayesian": 1811.6, "genetic": 1091.2, "greedy": 1091.2, "gpu": 1819.4, "cpu": 20019.1,
        "heuristic-gpu-first": 2998.5,
    },
}  # fmt: skip

#: Figures 8 and 9, four models: the same.
FIGURE_8: Mapping[str, float] = {
    "rl-rnn": 37.3, "bayesian": 38.1, "genetic": 6.2, "greedy": 29.3, "gpu": 229.0, "heuristic-gpu-first": 57.4,
}  # fmt: skip

#: Figure 11, real execution: the same.
FIGURE_11: Mapping[str, float] = {
    "rl-rnn": 686.2, "bayesian": 197.8, "genetic": 13.46, "greedy": 159.2, "cpu": 336, "gpu": 1044,
    "heuristic-gpu-first": 159.2,
}  # fmt: skip

#: BalanceNet (Sun, Ngo, Huh, 2024), figures 3 to 6: model -> policy -> milliseconds that its text gives.
BALANCENET_UPDATE_MILLISECONDS: Mapping[str, Mapping[str, float]] = {
    "cnn": {"bno": 0.103},
    "alexnet": {"bno": 0.212, "equal": 0.217, "random": 0.244},
    "resnet50": {"bno": 0.263, "equal": 0.323, "random": 0.283},
    "vgg16": {"bno": 0.263},
}
