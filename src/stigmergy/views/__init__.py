"""Read models: rows that follow the logs of a fleet, their stores, and the questions that they answer."""
