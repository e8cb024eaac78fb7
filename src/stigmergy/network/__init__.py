"""A node among others: its bus link, replication of shared fields, tells between the owners of shards."""
