"""Models that act: TinyAgent's transformer."""
