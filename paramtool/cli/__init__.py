"""The command line: every command is one call of `paramtool.commands`."""
