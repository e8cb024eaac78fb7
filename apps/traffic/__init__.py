"""Traffic control: intersections in a grid that share their phases with their neighbours and keep everybody safe alone.

`intersection.py` is who decides, `phases.py` what lamps can show, `monitor.py` who watches the lamps independently,
`traffic.py` the vehicles that are simulated. README.md says how to run it. It uses nothing but the public API.
"""
