"""The bus over MQTT 3.1.1 and 5, with paho-mqtt: `bus` keeps the session, `link` is a connection, `options` the URL."""

from stigmergy.bus.mqtt.bus import MqttBus, open_bus
from stigmergy.bus.mqtt.options import MqttOptions, parse_url

__all__ = ["MqttBus", "MqttOptions", "open_bus", "parse_url"]
