"""Other people's libraries: one thin file each. None yet."""
