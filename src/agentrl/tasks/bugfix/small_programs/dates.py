"""Dates and times of day as text and as numbers."""

from __future__ import annotations

from datetime import date, timedelta

from agentrl.tasks.bugfix.candidate import Inputs
from agentrl.tasks.bugfix.small_programs import draw


def is_leap_year(year: int) -> bool:
    """Tell whether a year has a 29th of February in the Gregorian calendar."""
    if year % 400 == 0:
        return True
    return year % 4 == 0 and year % 100 != 0


def days_in_month(year: int, month: int) -> int:
    """Count the days of a month from 1 to 12, leap years included."""
    if month == 2:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return 29 if leap else 28
    return 30 if month in (4, 6, 9, 11) else 31


def day_of_year(text: str) -> int:
    """Number a date given as YYYY-MM-DD within its year. The first of January is 1."""
    year, month, day = (int(part) for part in text.split("-"))
    start = date(year, 1, 1)
    return (date(year, month, day) - start).days + 1


def add_months(text: str, months: int) -> str:
    """Move a date given as YYYY-MM-DD by whole months. A day that the new month lacks becomes its last one."""
    year, month, day = (int(part) for part in text.split("-"))
    index = year * 12 + month - 1 + months
    year, month = index // 12, index % 12 + 1
    last = 31
    while last > 28:
        try:
            date(year, month, last)
            break
        except ValueError:
            last -= 1
    return f"{year}-{month:02}-{min(day, last):02}"


def count_weekdays(start: str, days: int) -> int:
    """Count the days from Monday to Friday among a number of days that begin with a start date."""
    first = date.fromisoformat(start)
    count = 0
    for offset in range(days):
        current = first + timedelta(days=offset)
        if current.weekday() < 5:
            count += 1
    return count


def minutes_between(start: str, end: str) -> int:
    """Count the minutes from one time of day to another, both HH:MM. An end before the start is the next day."""
    start_hour, start_minute = (int(part) for part in start.split(":"))
    end_hour, end_minute = (int(part) for part in end.split(":"))
    minutes = (end_hour - start_hour) * 60 + end_minute - start_minute
    if minutes < 0:
        minutes += 24 * 60
    return minutes


def format_seconds(seconds: int) -> str:
    """Write a number of seconds as H:MM:SS, or as M:SS below one hour. A negative one gets a minus."""
    sign = "-" if seconds < 0 else ""
    minutes, rest = divmod(abs(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours == 0:
        return f"{sign}{minutes}:{rest:02}"
    return f"{sign}{hours}:{minutes:02}:{rest:02}"


def quarter_label(text: str) -> str:
    """Name the quarter of a date given as YYYY-MM-DD, as in "2024-Q3"."""
    parts = text.strip().split("-")
    quarter = (int(parts[1]) - 1) // 3 + 1
    return f"{parts[0]}-Q{quarter}"


INPUTS: dict[str, Inputs] = {
    "is_leap_year": lambda rng: (rng.choice((1900, 2000, 2100, 2400, 1800, rng.randint(1990, 2030))),),
    "days_in_month": lambda rng: (rng.choice((1900, 2000, 2023, 2024)), rng.choice((2, rng.randint(1, 12)))),
    "day_of_year": lambda rng: (draw.day(rng),),
    "add_months": lambda rng: (draw.day(rng), rng.randint(-14, 14)),
    "count_weekdays": lambda rng: (draw.day(rng), rng.randint(0, 16)),
    "minutes_between": lambda rng: (draw.clock(rng), draw.clock(rng)),
    "format_seconds": lambda rng: (rng.choice((rng.randint(-200, 200), rng.randint(3500, 9000))),),
    "quarter_label": lambda rng: (rng.choice(("", " ")) + draw.day(rng),),
}
