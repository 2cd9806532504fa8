"""Files, locks, signals, arguments, text: what knows no word of this field."""
