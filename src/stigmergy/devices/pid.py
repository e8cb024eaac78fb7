"""A PID controller as a pure state machine: measurement in, output out. It uses no clock and drives nothing.

    pid = Pid(kp=2.0, ki=0.5, kd=0.1, low=0.0, high=1.0)
    thrust = pid.step(wanted_m, measured_m, dt_s)

The output is limited, and the integral does not wind up behind the limit: it only takes what the output can still use.
The derivative is that of the measurement, so that a new set-point gives no kick, and is smoothed by a first-order
filter. A value that is not finite is ignored: the last output is given again.
"""

from __future__ import annotations

import math

from stigmergy.base.errors import DefinitionError


class Pid:
    """One controller for one quantity. Give each agent its own; `reset` it when the loop begins to drive again."""

    __slots__ = ("_derivative", "_integral", "_last_measured", "_output", "_smooth_s", "high", "kd", "ki", "kp", "low")

    def __init__(
        self,
        *,
        kp: float,
        ki: float = 0.0,
        kd: float = 0.0,
        low: float = -math.inf,
        high: float = math.inf,
        smooth_s: float = 0.0,
    ) -> None:
        if not all(math.isfinite(gain) for gain in (kp, ki, kd)):
            raise DefinitionError(f"Pid(kp={kp}, ki={ki}, kd={kd}): gains are finite numbers")
        if not low < high:
            raise DefinitionError(f"Pid(low={low}, high={high}): low must be below high")
        if not 0 <= smooth_s < math.inf:
            raise DefinitionError(f"Pid(smooth_s={smooth_s}): the derivative's time constant is 0 or more seconds")
        self.kp, self.ki, self.kd = kp, ki, kd
        self.low, self.high = low, high
        self._smooth_s = smooth_s
        self.reset()

    def reset(self, output: float | None = None) -> None:
        """Forgets the past. With `output`, begins there without a jump, as far as the integral can hold it."""
        self._last_measured: float | None = None
        self._derivative = 0.0
        self._integral = 0.0 if output is None else self._limited(output)
        self._output = self._limited(self._integral)

    def step(self, wanted: float, measured: float, dt_s: float) -> float:
        """The output for a measurement that was made `dt_s` after the one before."""
        if not (math.isfinite(wanted) and math.isfinite(measured) and 0 < dt_s < math.inf):
            return self._output
        error = wanted - measured
        rate = 0.0 if self._last_measured is None else (measured - self._last_measured) / dt_s
        self._last_measured = measured
        self._derivative += (rate - self._derivative) * dt_s / (self._smooth_s + dt_s)
        quick = self.kp * error - self.kd * self._derivative
        step = self.ki * error * dt_s
        raw = quick + self._integral + step
        # At a limit the integral moves only back from it. That is enough, and leaves no state behind the limit.
        if self.low <= raw <= self.high or (raw > self.high and step < 0) or (raw < self.low and step > 0):
            self._integral = self._limited(self._integral + step)
        output = self._limited(quick + self._integral)
        if math.isfinite(output):
            self._output = output
        return self._output

    @property
    def integral(self) -> float:
        """What the integral adds to the output now."""
        return self._integral

    def _limited(self, value: float) -> float:
        return min(max(value, self.low), self.high)
