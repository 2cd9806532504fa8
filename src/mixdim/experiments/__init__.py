"""Where the rooms meet: demos, sweeps, records and figures. Only the command line imports it."""
