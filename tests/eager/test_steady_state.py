"""What surrounds a training step in real programs compiles nothing from step 3 on, and changes no loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..conftest import DEVICE
from .training import STEPS, Run, check_steady, follow, mlp

LOOP_SETTINGS = pytest.mark.parametrize("foreach", [False, True], ids=["loop", "foreach"])


def both(train: Callable[[str], Run]) -> None:
    check_steady(train("cpu"), train(DEVICE), rtol=1e-4)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: optim.lr_scheduler.CosineAnnealingLR(o, STEPS),
        lambda o: optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
        lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=STEPS + 1),
    ],
    ids=["cosine", "lambda", "one-cycle"],
)
def test_a_learning_rate_schedule_compiles_nothing(schedule: Callable[[optim.Optimizer], object]) -> None:
    def train(device: str) -> Run:
        model = mlp(device)
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = schedule(optimizer)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()  # type: ignore[attr-defined]
            return loss

        return follow(device, step)

    both(train)


@LOOP_SETTINGS
def test_clipping_the_gradients_norm_compiles_nothing(foreach: bool) -> None:
    def train(device: str) -> Run:
        model = mlp(device)
        optimizer = optim.Adam(model.parameters(), lr=1e-2, foreach=foreach)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=foreach)
            optimizer.step()
            return loss

        return follow(device, step)

    both(train)


def test_clipping_the_gradients_values_compiles_nothing() -> None:
    def train(device: str) -> Run:
        model = mlp(device)
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.05)
            optimizer.step()
            return loss

        return follow(device, step)

    both(train)


@pytest.mark.parametrize("set_to_none", [False, True], ids=["zeroed", "set to none"])
def test_gradient_accumulation_compiles_nothing(set_to_none: bool) -> None:
    def train(device: str) -> Run:
        model = mlp(device)
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad(set_to_none=set_to_none)
            total = torch.zeros((), device=device)
            for part_x, part_y in zip(x.chunk(2), y.chunk(2), strict=True):
                loss = cross_entropy(model(part_x), part_y) / 2
                loss.backward()
                total += loss.detach()
            optimizer.step()
            return total

        return follow(device, step)

    both(train)


def test_an_exponential_moving_average_of_the_weights_compiles_nothing() -> None:
    def train(device: str) -> Run:
        model = mlp(device)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            average.update_parameters(model)
            with torch.no_grad():
                return cross_entropy(average(x), y)

        return follow(device, step)

    both(train)


def test_a_moving_average_written_by_hand_compiles_nothing() -> None:
    def train(device: str) -> Run:
        model, average = mlp(device), mlp(device)
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                for a, p in zip(average.parameters(), model.parameters(), strict=True):
                    a.mul_(0.9).add_(p, alpha=0.1)
                return cross_entropy(average(x), y)

        return follow(device, step)

    both(train)


def test_evaluating_between_steps_without_reading_anything_compiles_nothing() -> None:
    def train(device: str) -> Run:
        model = mlp(device)
        model.append(nn.Dropout(0.0))
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        held_out = torch.linspace(-1, 1, 32).reshape(4, 8).to(device)
        correct = torch.zeros((), dtype=torch.int64, device=device)

        def step(x: Tensor, y: Tensor) -> Tensor:
            nonlocal correct
            model.train()
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                for _ in range(3):
                    correct += (model(held_out).argmax(1) == y).sum()
            return loss + correct

        return follow(device, step)

    both(train)


def test_a_window_that_slides_over_resident_data_compiles_nothing() -> None:
    def train(device: str) -> Run:
        model = mlp(device)
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        data = torch.linspace(-2, 2, 24 * 8).reshape(24, 8).sin().to(device)
        labels = (torch.arange(24) % 4).to(device)
        starts = iter(range(0, 24, 4))

        def step(x: Tensor, y: Tensor) -> Tensor:
            i = next(starts)
            optimizer.zero_grad()
            loss = cross_entropy(model(data[i : i + 4]), labels[i : i + 4])
            loss.backward()
            optimizer.step()
            return loss

        return follow(device, step)

    both(train)


def test_batches_drawn_by_a_permutation_compile_nothing() -> None:
    def train(device: str) -> Run:
        model = mlp(device)
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        data = torch.linspace(-2, 2, 24 * 8).reshape(24, 8).sin().to(device)
        labels = (torch.arange(24) % 4).to(device)
        order = torch.randperm(24, generator=torch.Generator().manual_seed(3)).to(device).split(4)
        batches = iter(order)

        def step(x: Tensor, y: Tensor) -> Tensor:
            rows = next(batches)
            optimizer.zero_grad()
            loss = cross_entropy(model(data[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            return loss

        return follow(device, step)

    both(train)


@pytest.mark.parametrize("read_every", [1, 2])
def test_reading_the_loss_now_and_then_compiles_nothing_after_it_was_seen_once(read_every: int) -> None:
    module = getattr(torch, DEVICE)
    model = mlp(DEVICE)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    x, y = torch.randn(4, 8).to(DEVICE), torch.tensor([0, 1, 2, 3]).to(DEVICE)
    compiled = []
    for i in range(9):
        before = module.metrics()["executables_compiled"]
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        if i % read_every == 0:
            loss.item()
        loss.backward()
        optimizer.step()
        compiled.append(module.metrics()["executables_compiled"] - before)
    assert compiled[3:] == [0] * 6, compiled


def test_a_python_number_that_changes_compiles_nothing() -> None:
    module = getattr(torch, DEVICE)
    x = torch.ones(4, device=DEVICE)
    for i in range(5):
        if i == 2:  # by then x is a value that exists, no longer one that the program makes
            module.reset_metrics()
        assert (x * (0.1 * i) + 0.5 * i).tolist() == pytest.approx([0.6 * i] * 4)
    assert module.metrics()["executables_compiled"] == 0


def test_a_network_with_dropout_and_batch_norm_compiles_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(16, 4)
    )
    model.to(DEVICE)
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(x.repeat(1, 2).reshape(4, 1, 4, 4)), y)
        loss.backward()
        optimizer.step()
        return loss

    run = follow(DEVICE, step)
    assert run.compiled[2:] == [0] * (STEPS - 2), run.compiled
    assert len(set(run.losses)) == STEPS


def test_generating_token_by_token_into_a_cache_compiles_nothing() -> None:
    """A static key-value cache: the position is a tensor, so every token runs the same program."""
    module = getattr(torch, DEVICE)
    torch.manual_seed(0)
    embedding, head = torch.randn(10, 8), torch.randn(8, 10)

    def generate(device: str) -> list[int]:
        e, h = embedding.to(device), head.to(device)
        cache = torch.zeros(12, 8, device=device)
        token = torch.tensor([1], device=device)
        tokens = []
        for i in range(8):
            position = torch.tensor([i], device=device)
            cache.index_copy_(0, position, e[token])
            scores = (cache @ e[token].T).masked_fill(torch.arange(12, device=device)[:, None] > position, -1e9)
            token = ((scores.softmax(0) * cache).sum(0, keepdim=True) @ h).argmax(-1)
            tokens.append(int(token.item()))
            if i == 1:
                module.reset_metrics()
        return tokens

    assert generate(DEVICE) == generate("cpu")
    assert module.metrics()["executables_compiled"] == 0
