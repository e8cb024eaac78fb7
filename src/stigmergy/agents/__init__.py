"""What users declare: messages, agents, fields, effects, windows; and their codec. Pure."""
