"""What ends a simulation, as one branch of the error tree.

    SimulationError
    ├── Deadlock            nothing is ready, no timer is set, main is not done
    ├── DeadlineExceeded    main was not done at the virtual deadline
    ├── StepsExceeded       main was not done after the stated number of callbacks, in all or at one moment
    ├── NoProgress          a node takes turn after turn for something that none of them serves
    ├── NotSimulated        threads, sockets, processes and signals do not exist in virtual time
    └── FailureIgnored      a task or a callback raised, and nobody retrieved the exception

A message names the seed, which reproduces the error.
"""

from stigmergy.base.errors import StigmergyError


class SimulationError(StigmergyError):
    """A simulation cannot go on."""


class Deadlock(SimulationError):
    """Nothing is ready, no timer is set, and the main coroutine is not done."""


class DeadlineExceeded(SimulationError):
    """The main coroutine was not done at the virtual deadline."""


class StepsExceeded(SimulationError):
    """The main coroutine was not done after the stated number of callbacks: probably a loop that never waits."""


class NoProgress(SimulationError):
    """A node takes turn after turn because something is due, and none serves it: on a real node, a busy core."""


class NotSimulated(SimulationError):
    """Threads, sockets, processes and signals do not exist in virtual time: simulate the port behind them."""


class FailureIgnored(SimulationError):
    """A task or a callback raised, and nobody looked at the exception."""
