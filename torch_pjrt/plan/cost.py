"""What a job costs: chip-hours by the user's own price file."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .answer import Cost, Row


class PriceError(ValueError):
    """A price file or a job that cannot be read; the message shows the form."""


_FORM = """a price file looks like

    currency = "USD"
    [chip-hour]
    v5e = 1.20
    "NVIDIA H100" = 3.00"""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of one chip for one hour, by the chip's name."""

    currency: str
    chip_hour: dict[str, float]

    def of(self, name: str) -> float | None:
        """The price of a chip, by its name in whatever case."""
        return {k.lower(): v for k, v in self.chip_hour.items()}.get(name.lower())


@dataclass(frozen=True, slots=True)
class Measured:
    """A step time that the user measured somewhere.

    Attributes:
        chip: its name in the price file.
        chips: how many.
        seconds: of one step.
        tokens: tokens (examples) of that step; None: as many as the plan's.
    """

    chip: str
    chips: int
    seconds: float
    tokens: int | None = None


def read_prices(file: str) -> Prices:
    """Read a price file (TOML). Raises PriceError if it is none."""
    try:
        said = tomllib.loads(Path(file).read_text())
    except FileNotFoundError:
        raise PriceError(f"{file}: no such file; {_FORM}") from None
    except tomllib.TOMLDecodeError as error:
        raise PriceError(f"{file}: {error}; {_FORM}") from None
    prices = said.get("chip-hour")
    if not isinstance(prices, dict) or not prices:
        raise PriceError(f"{file} has no table [chip-hour]; {_FORM}")
    for name, price in prices.items():
        if isinstance(price, bool) or not isinstance(price, (int, float)) or price < 0:
            raise PriceError(f"{file}: the price of {name} is {price!r}, not a number; {_FORM}")
    return Prices(str(said.get("currency", "")), {k: float(v) for k, v in prices.items()})


def read_measured(text: str) -> Measured:
    """Read "chip:chips:seconds" or "chip:chips:seconds:tokens", as in "NVIDIA H100:8:0.42".

    Raises PriceError if it is none.
    """
    chip, *numbers = text.rsplit(":") if text.count(":") <= 3 else [""]
    try:
        if not chip or not 2 <= len(numbers) <= 3:
            raise ValueError
        chips, seconds = int(numbers[0]), float(numbers[1])
        tokens = int(numbers[2]) if len(numbers) == 3 else None
        if chips < 1 or not 0 < seconds < float("inf") or (tokens is not None and tokens < 1):
            raise ValueError
    except ValueError:
        raise PriceError(
            f"--measured {text!r}: write chip:chips:seconds-per-step[:tokens-per-step], as in "
            "'NVIDIA H100:8:0.42:32768'"
        ) from None
    return Measured(chip, chips, seconds, tokens)


def costs(
    rows: Sequence[Row],
    prices: Prices,
    tokens: float | None = None,
    steps: float | None = None,
    measured: Sequence[Measured] = (),
) -> tuple[list[Cost], list[str]]:
    """What `tokens` tokens, or `steps` steps, cost on each topology that fits; the cheapest first.

    Returns:
        the costs, and the names of chips that have no price.

    Raises:
        PriceError: neither tokens nor steps, or both.
    """
    if (tokens is None) == (steps is None):
        raise PriceError("the cost of a job needs one of --tokens and --steps")
    found: list[Cost] = []
    missing: dict[str, None] = {}
    amounts = [r.tokens or r.batch for r in rows if r.fits]

    def add(name: str, chip: str, chips: int, seconds: float, amount: int | None, is_measured: bool) -> None:
        price = prices.of(chip)
        if price is None:
            missing[chip] = None
            return
        if steps is not None:
            count = steps
        elif amount:
            assert tokens is not None
            count = tokens / amount
        else:
            return
        hours = count * seconds / 3600
        found.append(Cost(name, chips, hours, hours * chips * price, is_measured, count))

    for row in rows:
        if row.fits and row.time is not None:
            name = f"{row.topology} {row.mesh}".strip()
            add(name, row.topology.partition(":")[0], row.chips, row.time.best, row.tokens or row.batch, False)
    for m in measured:
        amount = m.tokens or next((a for a in amounts if a), None)
        add(f"{m.chip} × {m.chips}", m.chip, m.chips, m.seconds, amount, True)
    return sorted(found, key=lambda c: c.cost), list(missing)
