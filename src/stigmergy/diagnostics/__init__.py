"""The log of a running process: codes of all messages, lines of JSON or text, the handler that writes them."""
