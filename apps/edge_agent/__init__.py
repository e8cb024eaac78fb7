"""The edge agent: a drone that decides on board, and the ground station that hears and orders it over a broker.

`drone.py` is what flies, `ground.py` who watches, `messages.py` what they say to each other, `airframe.py` the aircraft
that is simulated. README.md says how to run it. It uses nothing but the public API.
"""
