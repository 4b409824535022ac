"""What a model does to each number between two layers, as values at a few places.

GELU is one node, five nodes with `Erf`, or a word in a configuration: the values tell them alike, and ReLU apart.

Sources: docs/Operators.md of onnx 1.23; keras/src/activations (3.15.1); src/operator/leaky_relu-inl.h of MXNet 1.9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

Curve = tuple[float | str, ...]
"""The values at `PLACES`; or what is done in words, where that is not known as numbers."""
PLACES: Curve = (-4.137, -2.911, -1.171, -0.413, 0.317, 0.891, 2.239, 7.113)


def _sigmoid(x: float) -> float:
    return 0.5 + math.tanh(x / 2) / 2


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _elu(x: float, alpha: float = 1.0) -> float:
    return x if x > 0 else alpha * math.expm1(x)


def _gelu(x: float, is_approximate: float = 0) -> float:
    inner = math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return x / 2 * (1 + (inner if is_approximate else math.erf(x / math.sqrt(2))))


def _hard(x: float, alpha: float = 1 / 6, beta: float = 0.5) -> float:
    return min(max(alpha * x + beta, 0.0), 1.0)


FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "linear": lambda x: x, "relu": lambda x: max(x, 0.0), "relu6": lambda x: min(max(x, 0.0), 6.0),
    "sigmoid": _sigmoid, "tanh": math.tanh, "gelu": _gelu, "silu": lambda x, alpha=1.0: x * _sigmoid(alpha * x),
    "leakyrelu": lambda x, alpha: x if x > 0 else alpha * x, "elu": _elu,
    "celu": lambda x, alpha=1.0: x if x > 0 else alpha * math.expm1(x / alpha),
    "selu": lambda x: 1.0507009873554805 * _elu(x, 1.6732632423543772), "softplus": _softplus,
    "softsign": lambda x: x / (1 + abs(x)), "mish": lambda x: x * math.tanh(_softplus(x)),
    "hardsigmoid": _hard, "hardsilu": lambda x: x * _hard(x), "thresholdedrelu": lambda x, alpha=1.0: x * (x > alpha),
    "clip": lambda x, low=-math.inf, high=math.inf: min(max(x, low), high),
    "exp": math.exp, "log": math.log, "erf": math.erf, "sqrt": math.sqrt, "abs": abs, "neg": lambda x: -x,
    "reciprocal": lambda x: 1 / x, "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y, "pow": lambda x, y: x**y, "max": max, "min": min,
    "greater": lambda x, y: x > y, "less": lambda x, y: x < y, "where": lambda x, y, z: y if x else z,
    "tanhshrink": lambda x: x - math.tanh(x), "logsigmoid": lambda x: -_softplus(-x),
    "hardtanh": lambda x, low=-1.0, high=1.0: min(max(x, low), high),
}  # fmt: skip
"""{a name without `_`: what it computes of a number, and of its settings}"""
ALSO = {"swish": "silu", "hardswish": "hardsilu", "exponential": "exp", "identity": "linear", "softrelu": "softplus",
        "leaky": "leakyrelu", "multiply": "mul", "subtract": "sub", "divide": "div", "power": "pow", "maximum": "max",
        "minimum": "min", "concatenate": "concat", "sum": "add"}  # fmt: skip
SUMS = ("softmax", "logsoftmax")


def made(name: str, *given: Curve | float) -> Curve:
    """What a function makes of curves and of numbers; the function in words where it is not known.

    >>> made("ReLU", PLACES) == made("Max", PLACES, 0.0), made("Det", PLACES)
    (True, ('Det of linear',))
    """
    word = name.replace("_", "").casefold()
    word = ALSO.get(word, word)
    curves = [one if isinstance(one, tuple) else (one,) * len(PLACES) for one in given]
    try:
        if word in SUMS:
            values = [math.exp(float(x)) for x in curves[0]]
            return tuple(x / sum(values) if word == SUMS[0] else math.log(x / sum(values)) for x in values)
        found = tuple(float(FUNCTIONS[word](*map(float, row))) for row in zip(*curves, strict=True))
        if not any(map(math.isnan, found)):
            return found
    except (KeyError, TypeError, ValueError, ArithmeticError):
        pass
    return (f"{name} of {', '.join(map(shown, given))}"[:300],)


def alike(one: object, other: object) -> bool:
    """Whether two settings are the same, of numbers to a few digits."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=2e-3, abs_tol=1e-6)
    return one == other


def order(curve: Curve) -> list[str]:
    """By what curves are sorted, so that those that are alike have one place."""
    return [f"{round(one, 3) + 0.0:.2e}" if isinstance(one, float) else one for one in curve]


def shown(given: object) -> str:
    """A curve in words."""
    known = ("linear", "relu", "relu6", "sigmoid", "tanh", "gelu", "silu", "elu", "selu", "softplus", "mish", *SUMS)
    if isinstance(given, tuple) and len(given) > len(PLACES):
        return f"{given[0]} of {shown(given[1:])}"
    if isinstance(given, tuple) and len(given) == len(PLACES):
        values = ", ".join(f"f({x})={y:.3g}" for x, y in list(zip(PLACES, given, strict=True))[1::3])
        return next((name for name in known if alike(made(name, PLACES), given)), values)
    return ", ".join(map(shown, given)) if isinstance(given, (tuple, list)) else str(given)
