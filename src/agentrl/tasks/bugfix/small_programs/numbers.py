"""Whole numbers: digits, divisors, rounding, bases."""

from __future__ import annotations

from agentrl.tasks.bugfix.candidate import Inputs


def clamp(value: int, low: int, high: int) -> int:
    """Limit a value to the range from low to high, both included. Bounds in the wrong order are swapped."""
    if low > high:
        low, high = high, low
    if value < low:
        return low
    if value > high:
        return high
    return value


def digit_sum(number: int) -> int:
    """Add up the decimal digits of a number. The sign is ignored."""
    total = 0
    rest = abs(number)
    while rest > 0:
        total += rest % 10
        rest //= 10
    return total


def is_prime(number: int) -> bool:
    """Tell whether a number is prime. Numbers below two are not."""
    if number < 2:
        return False
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 1
    return True


def prime_factors(number: int) -> list[int]:
    """List the prime factors of a positive number in ascending order, repeated ones included."""
    factors = []
    divisor = 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


def greatest_common_divisor(first: int, second: int) -> int:
    """Find the greatest common divisor of two numbers, never negative. With zero it is the other number."""
    first, second = abs(first), abs(second)
    while second != 0:
        first, second = second, first % second
    return first


def to_base(number: int, base: int) -> str:
    """Write a number in a base from 2 to 16 with lower-case digits. A negative one gets a leading minus."""
    digits = "0123456789abcdef"
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    rest = abs(number)
    text = ""
    while rest > 0:
        text = digits[rest % base] + text
        rest //= base
    return sign + text


def round_to_multiple(value: int, step: int) -> int:
    """Round a value to the nearest multiple of a positive step. A tie goes up."""
    below = value // step * step
    if (value - below) * 2 < step:
        return below
    return below + step


def collatz_length(start: int) -> int:
    """Count the steps from a positive number down to 1: halve when even, else triple and add one."""
    steps = 0
    number = start
    while number != 1:
        if number % 2 == 0:
            number //= 2
        else:
            number = 3 * number + 1
        steps += 1
    return steps


def sum_of_multiples(limit: int, first: int, second: int) -> int:
    """Sum all numbers from 1 up to but not including the limit that either of two factors divides."""
    total = 0
    for number in range(1, limit):
        if number % first == 0 or number % second == 0:
            total += number
    return total


INPUTS: dict[str, Inputs] = {
    "clamp": lambda rng: (rng.randint(-12, 12), rng.randint(-9, 9), rng.randint(-9, 9)),
    "digit_sum": lambda rng: (rng.choice((0, rng.randint(-99, 99), rng.randint(-9999, 99999))),),
    "is_prime": lambda rng: (rng.choice((rng.randint(-3, 30), rng.choice((4, 9, 25, 49, 121, 169, 289)))),),
    "prime_factors": lambda rng: (rng.choice((rng.randint(1, 40), rng.randint(2, 6) ** rng.randint(1, 4))),),
    "greatest_common_divisor": lambda rng: tuple(rng.randint(-6, 12) * rng.choice((1, 4, 6)) for _ in range(2)),
    "to_base": lambda rng: (rng.choice((0, rng.randint(-300, 300))), rng.choice((2, 3, 8, 10, 16))),
    "round_to_multiple": lambda rng: (rng.randint(-40, 40), rng.choice((2, 4, 5, 6, 10))),
    "collatz_length": lambda rng: (rng.randint(1, 40),),
    "sum_of_multiples": lambda rng: (rng.randint(0, 31), rng.randint(2, 6), rng.choice((2, 3, 5, 7))),
}
