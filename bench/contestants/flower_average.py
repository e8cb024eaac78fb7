"""FedAvg of Flower on the rows of `bench federated`: `PYTHON flower_average.py NET.py IN.npz OUT.npy`.

It runs in an environment of its own, which has flwr and numpy and nothing of stigmergy: the net is loaded from its
file. Server, strategy and aggregation are Flower's; clients are called in this process instead of over gRPC.
"""

# mypy: ignore-errors
# `make check` does without the library: what it finds must not depend on who has it.

from __future__ import annotations

import importlib.util
import sys

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.server import Server
from flwr.server.strategy import FedAvg


class Site(ClientProxy):
    """A client with its rows."""

    def __init__(self, cid, net, rows, labels, seeds, clip_norm, epochs):
        super().__init__(cid)
        self.net, self.rows, self.labels, self.seeds = net, rows, labels, list(seeds)
        self.clip_norm, self.epochs = clip_norm, epochs

    def fit(self, ins, timeout, group_id):
        """Trains, and returns the weights with a clipped change."""
        (model,) = parameters_to_ndarrays(ins.parameters)
        seed = int(self.seeds.pop(0))
        update = self.net.train(model, self.rows, self.labels, seed=seed, epochs=self.epochs) - model
        update *= min(1.0, self.clip_norm / max(float(np.linalg.norm(update)), 1e-300))
        parameters = ndarrays_to_parameters([model + update])
        return FitRes(Status(Code.OK, ""), parameters, num_examples=len(self.rows), metrics={})

    def get_properties(self, ins, timeout, group_id):
        raise NotImplementedError

    def get_parameters(self, ins, timeout, group_id):
        raise NotImplementedError

    def evaluate(self, ins, timeout, group_id):
        raise NotImplementedError

    def reconnect(self, ins, timeout, group_id):
        raise NotImplementedError


def main(net_file, given_file, result_file):
    """Reads sites and seeds, writes the weights after all rounds."""
    spec = importlib.util.spec_from_file_location("net", net_file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["net"] = module
    spec.loader.exec_module(module)
    given = np.load(given_file)
    net = module.Net(int(given["inputs"]), int(given["hidden"]))
    clients, count = SimpleClientManager(), int(given["sites"])
    for at in range(count):
        seeds, clip, epochs = given[f"seeds_{at}"], float(given["clip_norm"]), int(given["epochs"])
        clients.register(Site(str(at), net, given[f"rows_{at}"], given[f"labels_{at}"], seeds, clip, epochs))
    strategy = FedAvg(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=count,
        min_evaluate_clients=0,
        min_available_clients=count,
        initial_parameters=ndarrays_to_parameters([given["model"]]),
        inplace=False,
    )
    server = Server(client_manager=clients, strategy=strategy)
    server.fit(num_rounds=len(given["seeds_0"]), timeout=None)
    np.save(result_file, parameters_to_ndarrays(server.parameters)[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
