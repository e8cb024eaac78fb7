"""A drone that flies missions."""

from stigmergy import Agent, Command, Event, Events, Fleet, decide, evolve


class StartMission(Command):
    mission: str


class MissionStarted(Event):
    mission: str


class Drone(Agent):
    mission: str | None = None

    @decide
    def start(self, command: StartMission) -> Events:
        yield MissionStarted(mission=command.mission)

    @evolve
    def started(self, event: MissionStarted) -> None:
        self.mission = event.mission


fleet = Fleet("drone", agents=[Drone])
