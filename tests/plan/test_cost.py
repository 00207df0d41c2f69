"""What a job costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_pjrt.plan.answer import Memory, Row, Time
from torch_pjrt.plan.cost import Measured, PriceError, Prices, costs, read_measured, read_prices


def row(topology: str, chips: int, seconds: float, fits: bool = True) -> Row:
    memory = Memory(100, 10, 0, 20 if fits else 200, 10, 0, 30 if fits else 210)
    time = Time(seconds, seconds, 0.0, seconds, "compute")
    return Row(topology, "fsdp=4", chips, chips, 8, fits=memory.fits, memory=memory, time=time, tokens=1000)


PRICES = Prices("USD", {"v5e": 1.0, "V6E": 2.0, "H100": 3.0})


def test_the_cheapest_is_first_and_what_does_not_fit_is_left_out() -> None:
    rows = [row("v5e:4x4", 16, 2.0), row("v6e:2x2", 4, 1.0), row("v5e:2x2", 4, 1.0, fits=False)]
    found, missing = costs(rows, PRICES, tokens=3_600_000)
    # 3,600 steps: 2 h × 16 chips × 1 USD, and 1 h × 4 chips × 2 USD.
    assert [(c.name, c.hours, c.cost) for c in found] == [("v6e:2x2 fsdp=4", 1.0, 8.0), ("v5e:4x4 fsdp=4", 2.0, 32.0)]
    assert missing == []


def test_a_measured_step_stands_beside_the_estimated_ones() -> None:
    found, missing = costs(
        [row("v5e:4x4", 16, 2.0)], PRICES, tokens=3_600_000, measured=[Measured("H100", 2, 0.5), Measured("X", 1, 1.0)]
    )
    assert [(c.name, c.cost, c.measured) for c in found] == [("H100 × 2", 3.0, True), ("v5e:4x4 fsdp=4", 32.0, False)]
    assert missing == ["X"]


def test_a_number_of_steps_needs_no_tokens() -> None:
    assert costs([row("v5e:4x4", 16, 2.0)], PRICES, steps=1800)[0][0].cost == 16.0


def test_a_job_has_tokens_or_steps() -> None:
    for tokens, steps in ((None, None), (1.0, 1.0)):
        with pytest.raises(PriceError, match="one of --tokens and --steps"):
            costs([], PRICES, tokens, steps)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no table"),
        ("x = [", "TOML|Invalid|Expected|Unclosed|end of"),
        ("[chip-hour]\nv5e = 'dear'", "price of v5e is 'dear'"),
    ],
)
def test_a_price_file_that_is_none_is_told_the_form(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(PriceError, match=words) as caught:
        read_prices(str(file))
    assert "[chip-hour]" in str(caught.value)


def test_a_price_file_is_a_table(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text('currency = "EUR"\n[chip-hour]\nv5e = 1.5\n"NVIDIA H100" = 3\n')
    prices = read_prices(str(file))
    assert (prices.currency, prices.of("V5E"), prices.of("nvidia h100"), prices.of("x")) == ("EUR", 1.5, 3.0, None)


def test_measured_is_chip_chips_seconds_tokens() -> None:
    assert read_measured("NVIDIA H100:8:0.42") == Measured("NVIDIA H100", 8, 0.42)
    assert read_measured("H100:8:0.42:32768") == Measured("H100", 8, 0.42, 32768)


@pytest.mark.parametrize("text", ["H100", "H100:8", "H100:x:1", "H100:0:1", ":8:1", "H100:8:-1", "H100:8:nan"])
def test_a_measurement_that_is_none_is_told_the_form(text: str) -> None:
    with pytest.raises(PriceError, match="chip:chips:seconds-per-step"):
        read_measured(text)
