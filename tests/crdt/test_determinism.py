"""The same writes are the same bytes in every process, whatever order its hashes put things in."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
from random import Random
from proofs.crdt_laws import History
from proofs.crdt_specifications import SPECIFICATIONS

for name, specification in SPECIFICATIONS.items():
    for case in range(20):
        history = History(specification, Random(case))
        history.go_on(20)
        print(name, case, *(delta.to_bytes().hex() for sent in history.deltas for delta in sent))
        print(*(store.to_bytes().hex() + store.digest().hex() for store in history.stores))
        print(*(repr(history.view.with_store(store)) for store in history.stores))
"""


def test_bytes_do_not_depend_on_the_order_of_hashes() -> None:
    outputs = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True)
        outputs.append(ran.stdout)
    assert len(outputs[0]) > 10_000
    assert outputs[0] == outputs[1]
