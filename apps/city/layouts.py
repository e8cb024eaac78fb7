"""The layouts of raw payloads, as sensors send them, and the threshold rule on their channels. Pure."""

from __future__ import annotations

from stigmergy import PayloadLayout

STEPS = 4
"""Readings in a window of the detector."""
CHANNELS = ("s1", "s2", "s3", "s4", "s5", "temperature", "humidity")
"""Raw channels as the multisensor of the data has them, for CO, NMHC, NOx, NO2 and O3; degrees C; per cent."""
RULE = {"co": ("s2", 1300.0), "no2": ("s5", 1900.0)}
"""The threshold rule that speaks where the net cannot: a channel, and over what it is an alarm: the pair with the best
F1 on the months that train."""
READING = PayloadLayout(number="u4", **dict.fromkeys(CHANNELS, "f4"))
"""Of `sensor/<id>/raw`: counts from 0 at each start of the sensor; the raw channels."""
LEVEL = PayloadLayout(number="u4", value="f4")
"""Of `sensor/<id>/level`: noise, flow of traffic and crowds."""
