"""One module per claim: each prints a table, and with --json one JSON object."""
