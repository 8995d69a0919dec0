"""From numbers to findings, and from findings to one sentence."""
