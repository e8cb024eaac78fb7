"""Claims: who holds what, as a pure fold of a ledger's entries, so that every reader computes the same holder.

    entries     the moves of claimants, their bytes and signatures
    sealing     one signature for many entries
    state       what the fold remembers: holders, offers, queues, writers
    rules       what each move does to it
    fold        bytes of a ledger in, the next state out; the state's own bytes and digest
    lease       how long a holder may believe it, and from when on others may say that it is over
    wish        one claim of one agent, seen from its own side: asking, waiting, holding, giving up

Three promises, whatever is lost, late, doubled or out of step:

1. **No verdict means not held.** Who does not know holds nothing, and needs nobody for doing what is safe.
2. **Never two who believe that they hold.** A holder counts its lease on its own monotonic clock, from before it asked.
   Nobody else gets the resource before the holder gave it up, or an observer has, on its own clock, waited for the
   lease and the drift of both clocks since it saw the grant.
3. **A newer grant has a higher token.** The token is the position in the ledger of the entry that granted; whoever acts
   for a holder remembers the highest one and refuses what is older.
"""
