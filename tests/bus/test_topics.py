"""Topics: every name has one topic, and every topic of the scheme one meaning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import ConfigError, DefinitionError, Malformed, StigmergyError
from stigmergy.bus.port import check_pattern, check_topic
from stigmergy.bus.topics import (
    Channel,
    Topic,
    Topics,
    check_level_name,
    escape,
    fill_address,
    parse_topic,
    read_template,
    safe_node_name,
    unescape,
)

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(names)
def test_any_name_survives_as_a_level_that_every_broker_takes(name: str) -> None:
    level = escape(name)
    assert unescape(level) == name
    assert level.isascii()
    assert not set(level) & set("/+#*>$. ")
    check_topic(f"a/{level}")


@given(names, names, st.lists(st.text(st.characters(codec="utf-8"), max_size=8), min_size=1, max_size=3))
def test_a_topic_says_whose_it_is(site: str, agent: str, about: list[str]) -> None:
    topics = Topics("delivery", site)
    written = "/".join(level.replace("/", "_") for level in about)
    topic = topics.events(f"Drone/{agent.replace('/', '_')}", written)
    found = parse_topic(topic)
    assert found == Topic("delivery", site, Channel.EVENTS, f"Drone/{agent.replace('/', '_')}", written)


def test_the_scheme() -> None:
    topics = Topics("delivery", "north")
    assert topics.of_agent("Drone/D-17", Channel.COMMANDS) == "delivery/north/agents/Drone/D-17/commands"
    assert topics.events("Drone/D.17", "battery/low") == "delivery/north/agents/Drone/D%2E17/events/battery/low"
    assert topics.of_node("gateway", Channel.PRESENCE) == "delivery/north/nodes/gateway/presence"
    assert parse_topic(topics.of_node("gateway", Channel.REFUSALS)).name == "gateway"
    assert topics.agents_pattern(Channel.COMMANDS) == "delivery/north/agents/+/+/commands"
    assert topics.agents_pattern(Channel.INPUTS, "Drone/1") == "delivery/north/agents/Drone/1/inputs"
    assert topics.source_of("Drone/D-17") == "/delivery/north/agents/Drone/D-17"
    check_pattern(topics.nodes_pattern(Channel.PRESENCE))


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "delivery",
        "delivery/north",
        "delivery/north/agents/Drone/1",
        "delivery/north/agents/Drone/1/orders",
        "delivery/north/agents/Drone/1/presence",
        "delivery/north/agents/Drone/1/commands/more",
        "delivery/north/agents/Drone/1/events",
        "delivery/north/nodes/gateway",
        "delivery/north/nodes/gateway/commands",
        "delivery/north/others/gateway/presence",
        "delivery/north/agents/Drone/%2f/commands",
        "delivery/north/agents/Drone/%FF/commands",
        "delivery/north/agents/Drone/a b/commands",
        "delivery/north/agents/Drone//commands",
        "delivery/north/agents/Drone/%41/commands",
    ],
)
def test_any_other_topic_is_refused(topic: str) -> None:
    with pytest.raises(Malformed):
        parse_topic(topic)


@given(st.text(max_size=60))
def test_no_text_raises_anything_but_ours(topic: str) -> None:
    try:
        parse_topic(topic)
    except StigmergyError:
        return
    check_topic(topic)


def test_a_template_finds_its_places_and_fills_them() -> None:
    template = read_template("agents/{id}/battery/+", escaped=False)
    assert template.pattern == "agents/+/battery/+"
    assert template.names == ("id",)
    assert template.match("agents/drone.1/battery/x") == {"id": "drone.1"}
    assert template.match("agents/drone.1/battery") is None
    assert template.match("agents/drone.1/other/x") is None
    assert read_template("agents/{id}").match("agents/D%2E1") == {"id": "D.1"}
    assert read_template("agents/{id}").fill({"id": "D.1"}) == "agents/D%2E1"
    assert read_template("agents/{id}", escaped=False).fill({"id": "D.1"}) == "agents/D.1"
    assert fill_address("Drone/{id}-{n}", {"id": "a", "n": "b"}) == "Drone/a-b"


@pytest.mark.parametrize("text", ["", "a//b", "a/#", "a/x+", "a/{id", "a/{id}x", "{id}/{id}", "a/b c"])
def test_a_template_that_cannot_be_subscribed_to_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError):
        read_template(text)


def test_names_of_sites_and_nodes() -> None:
    assert check_level_name("site", "north-1") == "north-1"
    for wrong in ("a/b", "", 7, "x" * 65):
        with pytest.raises(ConfigError, match="site"):
            check_level_name("site", wrong)
    assert safe_node_name("pi4.local") == "pi4"
    assert safe_node_name("ä b") == "--b"
    assert safe_node_name("") == "node"
