"""Commands for programs outside the fleet: what they need to reach it, and to see what it does."""
