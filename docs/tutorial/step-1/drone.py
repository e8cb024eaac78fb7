"""A drone that flies missions."""

import stigmergy as st


class StartMission(st.Command):
    mission: str


class MissionStarted(st.Event):
    mission: str


class Drone(st.Agent):
    mission: str | None = None

    @st.decide
    def start(self, command: StartMission) -> st.Events:
        yield MissionStarted(mission=command.mission)

    @st.evolve
    def started(self, event: MissionStarted) -> None:
        self.mission = event.mission


fleet = st.Fleet("drone", agents=[Drone])
