"""The command line: one file for each group of commands. docs/cli.md lists the keys of --json and the exit codes."""
