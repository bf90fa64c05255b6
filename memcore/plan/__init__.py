"""Plan: the document that says what is run, its rules, and its form as a link."""
