"""Random numbers depend on the seed and the number of draws before: not on the mode, nor on where traces are cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..conftest import DEVICE

module = getattr(torch, DEVICE)
MODES = ["strict", "async", "fused"]

DRAWS: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: torch.rand(5, device=DEVICE),
    "randn": lambda: torch.randn(5, device=DEVICE),
    "randint": lambda: torch.randint(1000, (5,), device=DEVICE),
    "randperm": lambda: torch.randperm(9, device=DEVICE),
    "bernoulli": lambda: torch.full((40,), 0.5, device=DEVICE).bernoulli(),
    "uniform_": lambda: torch.empty(5, device=DEVICE).uniform_(-1, 1),
    "normal_": lambda: torch.empty(5, device=DEVICE).normal_(2, 3),
    "exponential_": lambda: torch.empty(5, device=DEVICE).exponential_(),
    "multinomial": lambda: torch.ones(50, device=DEVICE).multinomial(5),
    "dropout": lambda: nn.functional.dropout(torch.ones(40, device=DEVICE)),
    "half": lambda: torch.randn(5, device=DEVICE, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_repeats_the_numbers_and_the_next_draw_differs(name: str) -> None:
    torch.manual_seed(3)
    first, second = DRAWS[name]().cpu(), DRAWS[name]().cpu()
    torch.manual_seed(3)
    assert torch.equal(DRAWS[name]().cpu(), first)
    assert not torch.equal(first, second)
    torch.manual_seed(4)
    assert not torch.equal(DRAWS[name]().cpu(), first)


def sequence(read: bool) -> list[Tensor]:
    """Several draws in a row, with or without the host looking at each."""
    torch.manual_seed(11)
    drawn = []
    for draw in (DRAWS["rand"], DRAWS["dropout"], DRAWS["randn"], DRAWS["randperm"], DRAWS["rand"]):
        drawn.append(draw())
        if read:
            drawn[-1].sum().item()
    return [t.cpu() for t in drawn]


def test_the_numbers_are_the_same_in_every_mode_and_wherever_traces_are_cut() -> None:
    expected = sequence(read=False)
    for mode in MODES:
        for read in (False, True):
            with module.eager_mode(mode):
                for got, want in zip(sequence(read), expected, strict=True):
                    assert torch.equal(got, want), (mode, read)


def test_a_draw_nobody_uses_still_counts() -> None:
    torch.manual_seed(5)
    torch.rand(3, device=DEVICE)
    expected = torch.rand(3, device=DEVICE).tolist()
    torch.manual_seed(5)
    torch.rand(3, device=DEVICE).tolist()
    assert torch.rand(3, device=DEVICE).tolist() == expected


def test_seeding_one_way_is_seeding_the_other_way() -> None:
    numbers = []
    for seed in (
        torch.manual_seed,
        module.manual_seed,
        module.manual_seed_all,
        module.default_generators[0].manual_seed,
    ):
        seed(7)
        numbers.append(torch.rand(3, device=DEVICE).tolist())
        assert module.initial_seed() == 7
    assert numbers[1:] == numbers[:1] * 3


def test_seed_takes_the_systems_entropy() -> None:
    assert module.seed() != module.seed()
    assert module.seed() == module.initial_seed()
    module.seed_all()


def test_the_state_can_be_taken_and_set() -> None:
    state = module.get_rng_state()
    assert (state.device.type, state.dtype) == ("cpu", torch.uint8)
    expected = torch.rand(3, device=DEVICE).tolist()
    assert not torch.equal(module.get_rng_state(), state)
    module.set_rng_state(state)
    assert torch.rand(3, device=DEVICE).tolist() == expected
    module.set_rng_state_all([state])
    assert torch.equal(module.get_rng_state_all()[0], state)
    assert torch.rand(3, device=DEVICE).tolist() == expected


def test_a_state_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(RuntimeError, match="16 bytes"):
        module.set_rng_state(torch.zeros(8, dtype=torch.uint8))


def test_fork_rng_gives_the_state_back() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3, device=DEVICE).tolist()
    torch.manual_seed(1)
    with torch.random.fork_rng([0], device_type=DEVICE):
        torch.rand(3, device=DEVICE)
    assert torch.rand(3, device=DEVICE).tolist() == expected


def test_a_generator_is_a_stream_of_its_own() -> None:
    g = torch.Generator(DEVICE).manual_seed(9)
    before = module.get_rng_state()
    expected = torch.rand(3, device=DEVICE, generator=g).tolist()
    assert torch.equal(module.get_rng_state(), before)
    assert torch.rand(3, device=DEVICE, generator=g).tolist() != expected
    assert torch.rand(3, device=DEVICE, generator=g.manual_seed(9)).tolist() == expected
    torch.manual_seed(9)
    assert torch.rand(3, device=DEVICE).tolist() == expected
    state = g.get_state()
    expected = torch.randn(3, device=DEVICE, generator=g).tolist()
    assert torch.randn(3, device=DEVICE, generator=g.set_state(state)).tolist() == expected
    assert torch.randperm(5, device=DEVICE, generator=g).sort().values.tolist() == [0, 1, 2, 3, 4]


def test_a_generator_of_another_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device=DEVICE, generator=torch.Generator())


@pytest.mark.parametrize("mode", MODES)
def test_dropout_scales_what_it_keeps_and_zeroes_the_same_in_the_backward_pass(mode: str) -> None:
    with module.eager_mode(mode):
        torch.manual_seed(0)
        x = torch.ones(1000, device=DEVICE, requires_grad=True)
        y = nn.functional.dropout(x, 0.25)
        y.sum().backward()
        assert torch.equal(y.detach().cpu(), x.grad.cpu())
        kept = (y != 0).sum().item()
        assert sorted(set(y.tolist())) == pytest.approx([0.0, 4 / 3])
        # Binomial(1000, 0.75) has a standard deviation of 13.7.
        assert abs(kept - 750) < 5 * 13.7


def test_dropout_changes_nothing_in_evaluation() -> None:
    layer = nn.Dropout(0.5).eval()
    assert layer(torch.ones(5, device=DEVICE)).tolist() == [1] * 5


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_redraws_the_same_dropout(reentrant: bool) -> None:
    x = torch.ones(200, device=DEVICE, requires_grad=True)
    y = checkpoint(lambda t: nn.functional.dropout(t, 0.5).exp().log(), x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(y.detach().cpu() != 0, x.grad.cpu() != 0)


COMPLEX: dict[str, Callable[[str], Tensor]] = {
    "randn": lambda d: torch.randn(20_000, dtype=torch.complex64, device=d),
    "rand": lambda d: torch.rand(20_000, dtype=torch.complex64, device=d),
    "normal_": lambda d: torch.empty(20_000, dtype=torch.complex64, device=d).normal_(0.0, 3.0),
    "uniform_": lambda d: torch.empty(20_000, dtype=torch.complex64, device=d).uniform_(-1.0, 2.0),
    "randn_like": lambda d: torch.randn_like(torch.empty(20_000, dtype=torch.complex128, device=d)),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_draws_have_the_moments_of_the_cpus_in_each_part(name: str) -> None:
    torch.manual_seed(5)
    cpu, ours = (torch.view_as_real(COMPLEX[name](d).cpu()).double() for d in ("cpu", DEVICE))
    deviation = float(cpu.std())
    torch.testing.assert_close(ours.mean(0), cpu.mean(0), rtol=0, atol=0.05 * deviation)
    torch.testing.assert_close(ours.var(0), cpu.var(0), rtol=0.05, atol=0)
    assert abs(float(torch.corrcoef(ours.T)[0, 1])) < 0.03


@pytest.mark.parametrize("draw", ["exponential_", "bernoulli_", "geometric_", "cauchy_", "log_normal_", "random_"])
def test_what_has_no_complex_draws_on_the_cpu_has_none_here(draw: str) -> None:
    arguments = [0.5] if draw == "geometric_" else []
    with pytest.raises(Exception) as expected:
        getattr(torch.empty(3, dtype=torch.complex64), draw)(*arguments)
    with pytest.raises(expected.type):
        getattr(torch.empty(3, dtype=torch.complex64, device=DEVICE), draw)(*arguments)
