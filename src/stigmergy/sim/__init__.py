"""The shipping runtime over simulated ports: time, disk, network and chance, all from one seed."""
