"""Words: what a plan can say, by subject. To add a word, add a row to its table."""
