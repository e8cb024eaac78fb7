"""Messages by topic: the port, MQTT and memory adapters, CloudEvents, topics, quotas, presence, publishing."""
