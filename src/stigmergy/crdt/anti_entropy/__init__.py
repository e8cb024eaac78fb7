"""How replicas find together: which change goes to whom, what is repaired, and who is believed. Pure, without I/O.

A `Machine` is one node's part in it. In: what was written and merged here and is durable, what others said, who is
there, and time. Out: a `Ready`, with datagrams to send and changes to hand to the host. It never waits and asks no
clock.

1. Only what is durable is told, and acknowledged: a change leaves when its event is on disk, and so does the answer.
2. A change goes at once to those who hold the object: to all if they are few, else to some, who pass it on as it came.
3. Whatever was lost, digests find: every interval two nodes compare what they hold, and send what the other lacks; the
   changes if they are still in the buffer, else the whole state, in parts.
4. A change is handed on only when everything that it builds upon is here. Until then it waits, and that is asked for.
5. A replica's changes are signed by its node. Who signs two different ones under one number is caught, and shut out by
   all who are shown both. Nobody is shut out for holding something else than we do.
6. Nothing but the durable stores is needed after a crash.
"""
