"""Times of day: minutes since midnight inside, "HH:MM" outside."""


def to_minutes(clock: str) -> int:
    """Minutes since midnight of a time of day."""
    hours, _, minutes = clock.strip().partition(":")
    return int(hours) * 60 + int(minutes)


def to_clock(minutes: int) -> str:
    """The time of day at some minutes since midnight."""
    return f"{minutes // 60:02}:{minutes % 60:02}"


def round_up(minutes: int, step: int) -> int:
    """The first multiple of a step that is not before the given minutes."""
    return -(-minutes // step) * step
