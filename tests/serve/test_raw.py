"""HTTP is for programs anywhere: events, states, logs and dead letters come without what is raw."""

import asyncio
import urllib.request
from pathlib import Path

import stigmergy as st
from stigmergy.serve.embedded import ServedFleet

SECRET = "said-behind-a-closed-door"


class VoiceHeard(st.Event, raw=True):
    text: str


class VoiceCounted(st.Event):
    count: int


class Ear(st.Agent, kind="Ear"):
    recent: st.Window[VoiceHeard] = st.Window.last(4)
    count: int = 0

    @st.decide
    def hear(self, event: VoiceHeard) -> st.Events:
        if event.text.startswith("poison"):
            raise ValueError(event.text)
        yield event
        yield VoiceCounted(count=self.count + 1)

    @st.evolve
    def counted(self, event: VoiceCounted) -> None:
        self.count = event.count


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=240) as answer:
        text: str = answer.read().decode()
        return text


async def test_nothing_raw_is_in_any_answer(tmp_path: Path) -> None:
    fleet = st.Fleet("ears", agents=[Ear])
    running = fleet.running(journal=f"sqlite:{tmp_path}/ears.db")
    async with running as live, ServedFleet(running, live) as served:
        await live.observe("Ear/e", VoiceHeard(text=SECRET))
        await live.observe("Ear/e", VoiceHeard(text=f"poison {SECRET}"))
        for path in ("agents/Ear/e", "agents", "agents/Ear/e/events", "agents/Ear/e/explain", "letters"):
            text = await asyncio.to_thread(read, f"{served.url}/v1/{path}")
            assert SECRET not in text, path
            assert "stays on its device" in text, path
        assert '"count":1' in await asyncio.to_thread(read, f"{served.url}/v1/agents/Ear/e")
