"""The long proofs: the rows of the scorecard that need more time than a test run has. `make prove` runs them all."""
