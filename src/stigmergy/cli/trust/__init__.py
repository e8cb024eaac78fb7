"""Commands about who is believed: keys that sign, certificates that let in."""
