"""Anti-entropy between replicas: which change goes to whom, what is repaired, and who is believed. Pure, without I/O.

A `Machine` is one node's part. In: durable writes and merges of this node, messages of others, the members, and time.
Out: a `Ready`, with datagrams to send and changes to hand to the host. It never waits and uses no clock.

1. Only durable changes are sent and acknowledged: a change leaves when its event is on disk, and so does the answer.
2. A change goes at once to the holders of the object: to all if they are few, else to some, who forward it unchanged.
3. Digests repair losses: every interval two nodes compare what they hold and send what the other lacks; the changes if
   they are still in the buffer, else the whole state, in parts.
4. A change is handed on only when everything that it builds upon is here. Until then it waits, and that is requested.
5. A node signs the changes of its replicas. A node that signs two different changes under one number is quarantined by
   all who see both. Nobody is quarantined for holding something else than we do.
6. After a crash only the durable stores are needed.
"""
