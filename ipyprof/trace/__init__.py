"""Files and events as columns."""
