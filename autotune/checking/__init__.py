"""Everything that can be known before the first restart, as a table with what to do."""
