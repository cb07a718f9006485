"""The BugFix gym: small Python programs with one bug each, repaired with tools, judged by hidden tests."""
