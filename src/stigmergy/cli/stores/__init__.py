"""Commands that speak to a store: no node has to run."""
