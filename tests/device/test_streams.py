"""Streams are names in one order; events are moments in it."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from ..conftest import DEVICE

module = getattr(torch, DEVICE)


@pytest.fixture(autouse=True)
def default_stream_after() -> object:
    yield
    module.set_stream(module.default_stream())


def test_every_stream_is_another_one_and_equal_to_itself() -> None:
    a, b = module.Stream(), module.Stream(priority=-1)
    assert a != b and a != module.default_stream()
    assert a == torch.Stream(stream_id=a.stream_id, device_index=a.device_index, device_type=a.device_type)
    assert torch.Stream(DEVICE) != torch.Stream(DEVICE, priority=-1)
    assert a.device == torch.device(DEVICE, 0)
    assert len({a, b, a}) == 2


def test_a_stream_is_current_inside_its_block_only() -> None:
    outer, inner = module.Stream(), torch.Stream(DEVICE)
    before = module.current_stream()
    assert before == module.default_stream() == torch.accelerator.current_stream()
    with module.stream(outer):
        assert module.current_stream() == torch.accelerator.current_stream() == outer
        with inner:
            assert module.current_stream(0) == inner
        assert module.current_stream() == outer
        with module.stream(None):
            assert module.current_stream() == outer
    assert module.current_stream() == before


def test_a_stream_that_is_set_stays_current_in_this_thread_only() -> None:
    mine, seen = module.Stream(), []
    for set_stream in (module.set_stream, torch.accelerator.set_stream):
        set_stream(mine)
        assert module.current_stream() == mine
        thread = threading.Thread(target=lambda: seen.append(module.current_stream()))
        thread.start()
        thread.join()
        assert seen.pop() == module.default_stream()
        module.set_stream(module.default_stream())
    module.set_stream(None)
    assert module.current_stream() == module.default_stream()


def test_work_on_several_streams_is_done_in_program_order() -> None:
    a, b = module.Stream(), module.Stream()
    x = torch.zeros(3, device=DEVICE)
    with module.stream(a):
        x += 1
        done = a.record_event()
    with module.stream(b):
        b.wait_event(done)
        x *= 10
    module.current_stream().wait_stream(b)
    x.record_stream(b)
    assert (x + 1).tolist() == [11, 11, 11]


def test_a_stream_that_is_asked_starts_its_work_and_is_done_after_synchronizing() -> None:
    stream = module.Stream()
    x = torch.ones(3, device=DEVICE).exp()
    before = module.metrics()["traces_run"]
    stream.query()
    assert module.metrics()["traces_run"] == before + 1
    stream.synchronize()
    assert stream.query()
    del x


def test_an_event_without_timing_cuts_nothing_until_it_is_asked() -> None:
    x = torch.ones(3, device=DEVICE).exp()
    event = torch.Event(DEVICE)
    before = module.metrics()["traces_run"]
    event.record()
    event.wait()
    assert module.metrics()["traces_run"] == before
    event.synchronize()
    assert module.metrics()["traces_run"] == before + 1
    assert event.query()
    del x


def test_synchronizing_waits_for_a_compiled_graph_whose_result_nobody_holds() -> None:
    @torch.compile(backend=DEVICE)
    def long(x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(6):
            y = y @ x
        return y.amax()

    def seconds(*, held: bool) -> float:
        began = time.perf_counter()
        result = long(x)
        if not held:
            del result
        torch.zeros(3).to(DEVICE)  # here arrays that nobody holds are let go of
        module.synchronize()
        return time.perf_counter() - began

    x = torch.ones(1500, 1500, device=DEVICE)
    long(x)
    module.synchronize()
    assert seconds(held=False) > seconds(held=True) / 4


def test_a_loop_that_asks_an_event_ends() -> None:
    x = torch.ones(256, 256, device=DEVICE)
    for _ in range(4):
        x = x @ x / 256
    event = module.Event()
    event.record(module.current_stream())
    y = x + 1  # recorded after the event
    while not event.query():
        pass
    assert y[0, 0].item() == 2


def test_an_event_that_was_never_recorded_is_reached() -> None:
    event = module.Event()
    assert event.query()
    event.synchronize()
    event.wait()


def test_an_event_can_be_recorded_again() -> None:
    event = module.Event(enable_timing=True)
    start = module.Event(enable_timing=True)
    event.record()
    start.record()
    event.record()
    assert start.elapsed_time(event) >= 0
    assert isinstance(event, module.Event) and not isinstance(module.Stream(), module.Event)


def test_elapsed_time_contains_what_ran_between_two_timed_events() -> None:
    x = torch.randn(1024, 1024, device=DEVICE)
    (x @ x).sum().item()
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    start.record()
    for _ in range(4):
        x = x @ x / 1024
    end.record()
    # 4 × 2 × 1024³ flops; no CPU core does 10¹³ in a second.
    assert start.elapsed_time(end) > 4 * 2 * 1024**3 / 1e13 * 1e3


def test_elapsed_time_wants_timed_and_recorded_events() -> None:
    timed, plain = module.Event(enable_timing=True), module.Event()
    with pytest.raises(ValueError, match="Both events must be recorded"):
        timed.elapsed_time(module.Event(enable_timing=True))
    timed.record()
    plain.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        timed.elapsed_time(plain)


def test_what_pjrt_has_not_is_refused_with_the_reason() -> None:
    with pytest.raises(NotImplementedError, match="between processes"):
        module.Event(interprocess=True)
    with pytest.raises(NotImplementedError, match="between processes"):
        module.ipc_collect()
    with pytest.raises(RuntimeError, match="no native handle"):
        _ = module.Stream().native_handle
    with pytest.raises(RuntimeError, match=f"Graph is not supported on device type: {DEVICE}"):
        torch.accelerator.Graph()


def test_a_stream_of_a_device_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RuntimeError, match=rf"{DEVICE}:7 does not exist"):
        module.Stream(7)
    with pytest.raises(ValueError, match="got cpu"):
        module.Stream("cpu")
