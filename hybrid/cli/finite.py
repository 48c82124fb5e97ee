"""Numbers on the command line. Owns what click lets through: `nan` is in every range for it, as no comparison holds."""

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """`click.FloatRange` that takes neither `nan` nor `inf`: sockets, clocks and plans can make nothing of them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; one that is not finite, or out of the range, is bad usage."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number
