"""`make demo-edge`: one flight over a real broker, a killed program, a cut link, and what is proved afterwards."""
