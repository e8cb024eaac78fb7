"""What presence says about who may run an agent, for nodes that send on what is for others."""

from stigmergy.bus.presence import Member, may_run, names

WORKER = Member(node="shard-0", run="1", kinds=("Office", "Drone"), shards_run=("Office/*",))


def test_workers_that_name_their_agents_run_no_others() -> None:
    assert names(WORKER, "Office/cloud")
    assert may_run("Office/cloud", [WORKER])
    assert not names(WORKER, "Drone/7")
    assert not may_run("Drone/7", [WORKER]), "a node between levels may take what is for it"


def test_workers_that_name_none_may_run_any() -> None:
    unnamed = Member(node="shard-0", run="1", kinds=("Office", "Drone"))
    assert may_run("Drone/7", [unnamed])
    assert not names(unnamed, "Drone/7")


def test_owners_of_shards_do_not_claim_agents_from_each_other() -> None:
    assert (WORKER.agents, WORKER.assignment) == ((), None)
