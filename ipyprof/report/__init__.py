"""The report and everything that draws it."""
