"""The parts of `bench compiled`, each run in processes of its own. They need the extra [compiled]."""
