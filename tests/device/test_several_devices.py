"""Two devices in one process: tensors on each, copies and backward passes between them."""

from __future__ import annotations

import textwrap

from ..process import output

TWO = {"JAX_NUM_CPU_DEVICES": "2"}
BEGIN = """
import torch
from torch import nn
first, second = torch.device("pjrt:0"), torch.device("pjrt:1")
def raised(fn):
    try: fn()
    except Exception as e: return f"{type(e).__name__}: {e}"
    return "nothing"
"""


def two(program: str) -> list[str]:
    """The lines that a program prints where there are two devices."""
    return output(BEGIN + textwrap.dedent(program), TORCH_PJRT_DEVICE_NAME="pjrt", **TWO).splitlines()


def test_each_device_computes_and_copies_go_between_them() -> None:
    assert two("""
        print(torch.accelerator.device_count(), torch.pjrt.device_count())
        a = torch.arange(6.0, device=first).reshape(2, 3)
        b = (a + 1).to(second)
        print(b.device, (b * 2).tolist())
        print((b.T.to(first) + a.T).tolist(), b.T.to(first).device)
        a[:, 1].copy_(b[:, 0])
        print(a.tolist())
        a.add_(1)
        print(b.tolist())
        from torch_pjrt import _C
        print([d.id for x in (a, b) for d in _C.array(x).devices()])
    """) == [
        "2 2",
        "pjrt:1 [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]",
        "[[1.0, 7.0], [3.0, 9.0], [5.0, 11.0]] pjrt:0",
        "[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]",
        "[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]",
        "[0, 1]",
    ]


def test_the_current_device_decides_where_new_tensors_go() -> None:
    assert two("""
        torch.pjrt.set_device(1)
        print(torch.ones(1, device="pjrt").device, torch.ones(1).to("pjrt").device, torch.ones(1).pjrt().device)
        with torch.pjrt.device(0):
            print(torch.ones(1, device="pjrt").device, torch.accelerator.current_device_index())
        print(torch.rand(1, device="pjrt").device)
        with torch.pjrt.device_of(torch.ones(1, device=first)):
            print(torch.empty(1, device="pjrt").device)
        torch.accelerator.set_device_index(0)
        print(torch.ones(1, device="pjrt").device)
        x = torch.ones(2, device=second)
        print((x + 1).device, torch.zeros_like(x).device, x.new_ones(1).device, x.sum().device)
    """) == [
        "pjrt:1 pjrt:1 pjrt:1",
        "pjrt:0 0",
        "pjrt:1",
        "pjrt:0",
        "pjrt:0",
        "pjrt:1 pjrt:1 pjrt:1 pjrt:1",
    ]


def test_backward_passes_run_on_each_device_and_across_them() -> None:
    assert two("""
        def gradients(d0, d1):
            torch.manual_seed(0)
            lower, upper = nn.Linear(3, 4), nn.Linear(4, 2)
            lower.to(d0); upper.to(d1)
            loss = upper(torch.tanh(lower(torch.ones(2, 3, device=d0))).to(d1)).square().sum()
            loss.backward()
            return [p.grad for p in [*lower.parameters(), *upper.parameters()]]
        cpu = gradients("cpu", "cpu")
        for d0, d1 in ((first, first), (second, second), (first, second), (second, first)):
            grads = gradients(d0, d1)
            close = all(torch.allclose(g.cpu(), c, atol=1e-6) for g, c in zip(grads, cpu))
            print([str(g.device) for g in grads[1:3]], close)
    """) == [
        "['pjrt:0', 'pjrt:0'] True",
        "['pjrt:1', 'pjrt:1'] True",
        "['pjrt:0', 'pjrt:1'] True",
        "['pjrt:1', 'pjrt:0'] True",
    ]


def test_a_model_trains_on_the_second_device_as_on_the_cpu() -> None:
    assert two("""
        def losses(device):
            global model
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device)
            for _ in range(4):
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                yield loss.item()
        expected = [*losses("cpu")]
        print(torch.allclose(torch.tensor([*losses(second)]), torch.tensor(expected), rtol=1e-5))
        print(torch.pjrt.memory_allocated(0), torch.pjrt.memory_allocated(1) > 0)
    """) == ["True", "0 True"]


def test_operands_on_two_devices_are_refused_at_the_call() -> None:
    lines = two("""
        a, b = torch.ones(2, device=first), torch.ones(2, device=second)
        for mode in ("strict", "async", "fused"):
            with torch.pjrt.eager_mode(mode):
                print(raised(lambda: a + b))
                print(raised(lambda: torch.cat([a, b])))
        print((a + 1).tolist(), (b + 1).tolist())
    """)
    assert len(lines) == 7
    for line in lines[:6]:
        assert line.startswith("RuntimeError: Expected all tensors to be on the same device")
        assert "pjrt:0" in line and "pjrt:1" in line
    assert lines[6] == "[2.0, 2.0] [2.0, 2.0]"


def test_each_device_has_a_generator_of_its_own() -> None:
    assert two("""
        torch.manual_seed(0)
        a, b = torch.rand(3, device=first).tolist(), torch.rand(3, device=second).tolist()
        torch.pjrt.manual_seed_all(0)
        torch.rand(5, device=first)
        print(torch.rand(3, device=second).tolist() == b)
        with torch.pjrt.device(1):
            torch.pjrt.manual_seed(5)
        print(torch.pjrt.default_generators[0].initial_seed(), torch.pjrt.default_generators[1].initial_seed())
        print(len(torch.pjrt.get_rng_state_all()), len(torch.pjrt.default_generators))
        print(torch.Generator(second).device, torch.Generator("pjrt:0").device)
    """) == ["True", "0 5", "2 2", "pjrt:1 pjrt:0"]


def test_memory_is_counted_where_it_is() -> None:
    assert two("""
        a = torch.ones(256, device=second)
        torch.accelerator.synchronize(1)
        allocated = torch.accelerator.memory_allocated
        print(allocated(0), allocated(1), torch.pjrt.memory_allocated("pjrt:1"))
        b = a.to(first)
        print(torch.accelerator.memory_allocated(0), torch.accelerator.memory_allocated(1))
    """) == ["0 1024 1024", "1024 1024"]


def test_an_error_on_one_device_leaves_the_other_working() -> None:
    lines = two("""
        from torch_pjrt.lowering import registry
        (torch.ones(1, device=first) + 1).tolist()  # the lowerings are loaded by now
        def broken(*args): raise ValueError("broken on purpose")
        registry._TABLE["atan2"] = registry.Lowering(broken)
        ones = torch.ones(2, device=first)
        bad, good = torch.atan2(ones, ones), torch.ones(2, device=second) + 1
        print(good.tolist())
        print("broken on purpose" in raised(lambda: bad.tolist()))
        print((good + 1).tolist(), torch.ones(1, device=first).tolist())
    """)
    assert lines == ["[2.0, 2.0]", "True", "[3.0, 3.0] [1.0]"]
