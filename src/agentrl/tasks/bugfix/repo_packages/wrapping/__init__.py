"""Reports in plain text: words to lines, lines to boxes and columns."""
