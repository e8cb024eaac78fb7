"""One technology per file or package, each an implementation of a port. An adapter knows no other adapter.

An adapter translates every error of its driver into the port's own, and states in its docstring what it adds to the
port's guarantees. Only the composition root names adapters.
"""
