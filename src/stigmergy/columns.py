"""For programs that send to compiled agents or carry out their orders in bulk: `from stigmergy.columns import Batcher`.

Importing it needs numpy, which comes with `pip install "stigmergy[compiled]"`. Arrow is in `stigmergy.arrow`.
"""

from stigmergy.compiled.batcher import Batcher
from stigmergy.runtime.columns.orders import Orders
from stigmergy.runtime.columns.roster import Place, Roster, ShardRoster

__all__ = ["Batcher", "Orders", "Place", "Roster", "ShardRoster"]
