"""For programs that send to compiled agents or carry out their orders in bulk: `from stigmergy.columns import Batcher`.

Importing it needs numpy, which comes with `pip install "stigmergy[compiled]"`. Arrow is in `stigmergy.arrow`.
"""

try:
    from stigmergy.compiled.batcher import Batcher
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'stigmergy.columns needs {error.name}: pip install "stigmergy[compiled]"', name=error.name
    ) from None
from stigmergy.node.column_actuators import Orders
from stigmergy.node.column_roster import Place, Roster, ShardRoster

__all__ = ["Batcher", "Orders", "Place", "Roster", "ShardRoster"]
