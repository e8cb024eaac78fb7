"""What users declare: messages, agents, their fields, effects and windows; and the codec of all of it. Pure."""
