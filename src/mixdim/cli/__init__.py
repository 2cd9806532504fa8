"""The command line: thin, one file a group of commands, and how every command starts and ends."""
