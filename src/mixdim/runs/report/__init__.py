"""One page about records and figures, that works offline."""
