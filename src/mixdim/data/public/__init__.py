"""Public data sets: how they are downloaded, and their files as typed rows."""
