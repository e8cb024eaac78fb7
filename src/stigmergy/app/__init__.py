"""The composition root: puts fleets, journals, keys, buses and clusters together from their URLs."""
