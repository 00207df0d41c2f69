"""torch.autocast and torch.amp.GradScaler on the device: dtypes as documented, values as on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from ..conftest import DEVICE
from ..eager.training import STEPS, Run, follow, mlp

LOW = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
torch.manual_seed(0)
A, B, IMAGE, KERNEL = torch.randn(4, 8), torch.randn(8, 4), torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3)

Op = Callable[[Callable[[Tensor], Tensor]], Tensor]
IN_LOW_PRECISION: dict[str, Op] = {
    "matmul": lambda at: at(A) @ at(B),
    "linear": lambda at: functional.linear(at(A), at(B.T)),
    "bmm": lambda at: torch.bmm(at(A[None]), at(B[None])),
    "conv2d": lambda at: functional.conv2d(at(IMAGE), at(KERNEL)),
    "addmm": lambda at: torch.addmm(at(torch.ones(4, 4)), at(A), at(B)),
    "attention": lambda at: functional.scaled_dot_product_attention(at(A[None]), at(A[None]), at(A[None])),
}
IN_FLOAT32: dict[str, Op] = {
    "softmax": lambda at: at(A.half()).softmax(-1),
    "log_softmax": lambda at: at(A.half()).log_softmax(-1),
    "layer_norm": lambda at: functional.layer_norm(at(A.half()), (8,)),
    "exp": lambda at: at(A.half()).exp(),
    "sum": lambda at: at(A.half()).sum(),
    "cross_entropy": lambda at: functional.cross_entropy(at(A.half()), at(torch.tensor([0, 1, 2, 3]))),
}


def on_device(t: Tensor) -> Tensor:
    return t.to(DEVICE)


@LOW
@pytest.mark.parametrize("name", IN_LOW_PRECISION)
def test_autocast_computes_products_in_low_precision(name: str, dtype: torch.dtype) -> None:
    with torch.autocast(DEVICE, dtype):
        result = IN_LOW_PRECISION[name](on_device)
    assert result.dtype == dtype
    exact = IN_LOW_PRECISION[name](lambda t: t.double())
    torch.testing.assert_close(result.cpu().double(), exact, rtol=5e-2, atol=5e-2)


@LOW
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_recurrent_cells_compute_and_differentiate_in_low_precision(
    cell: type[nn.RNNCellBase], bias: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    exact = cell(3, 4, bias=bias)
    ours = copy.deepcopy(exact).to(DEVICE)
    x = torch.randn(2, 3)
    with torch.autocast(DEVICE, dtype):
        made = ours(x.to(DEVICE))
    made, wanted = (m[0] if isinstance(m, tuple) else m for m in (made, exact(x)))
    assert made.dtype == dtype
    made.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(made.cpu().float(), wanted, rtol=3e-2, atol=3e-2)
    for p, q in zip(ours.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_autocast_computes_what_needs_range_in_float32(name: str) -> None:
    with torch.autocast(DEVICE, torch.float16):
        result = IN_FLOAT32[name](on_device)
    assert result.dtype == torch.float32
    exact = IN_FLOAT32[name](lambda t: t.double() if t.is_floating_point() else t)
    torch.testing.assert_close(result.cpu().double(), exact, rtol=1e-4, atol=1e-4)


def test_autocast_promotes_to_the_widest_operand() -> None:
    with torch.autocast(DEVICE, torch.bfloat16):
        product = on_device(A) @ on_device(B)
        assert torch.addcmul(product, on_device(torch.ones(4, 4)), product).dtype == torch.float32
        assert torch.cat([product, on_device(torch.ones(4, 4))]).dtype == torch.float32


def test_autocast_is_off_outside_of_its_block_and_where_disabled() -> None:
    with torch.autocast(DEVICE, torch.bfloat16):
        with torch.autocast(DEVICE, enabled=False):
            assert (on_device(A) @ on_device(B)).dtype == torch.float32
        assert torch.is_autocast_enabled(DEVICE)
    assert (on_device(A) @ on_device(B)).dtype == torch.float32
    assert not torch.is_autocast_enabled(DEVICE)


def test_autocast_of_the_cpu_leaves_the_device_alone() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert (on_device(A) @ on_device(B)).dtype == torch.float32


@LOW
def test_autocast_gives_float32_gradients_to_float32_weights(dtype: torch.dtype) -> None:
    weight = on_device(B).requires_grad_()
    with torch.autocast(DEVICE, dtype):
        loss = (on_device(A) @ weight).float().square().mean()
    loss.backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    exact = B.double().requires_grad_()
    (A.double() @ exact).square().mean().backward()
    torch.testing.assert_close(weight.grad.cpu().double(), exact.grad, rtol=5e-2, atol=5e-2)


def test_amp_dtypes_are_the_two_half_types() -> None:
    assert getattr(torch, DEVICE).get_amp_supported_dtype() == [torch.bfloat16, torch.float16]


def train_scaled(device: str, poisoned: int | None = None, fused: bool = False) -> tuple[Run, list[float], nn.Module]:
    model = mlp(device)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8, growth_interval=2)
    scales = []

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if len(scales) == poisoned:
            model[0].weight.grad[0, 0] = float("inf")  # type: ignore[union-attr,index]
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        return loss

    return follow(device, step), scales, model


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
def test_grad_scaler_trains_as_on_cpu_and_compiles_nothing_from_step_3_on(fused: bool) -> None:
    expected, expected_scales, _ = train_scaled("cpu")
    run, scales, _ = train_scaled(DEVICE, fused=fused)
    torch.testing.assert_close(torch.tensor(run.losses), torch.tensor(expected.losses), rtol=1e-4, atol=1e-6)
    assert scales == expected_scales == [2.0**8, 2.0**9, 2.0**9, 2.0**10, 2.0**10, 2.0**11]
    assert run.compiled[2:] == [0] * (STEPS - 2), run.compiled


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
def test_grad_scaler_skips_the_step_whose_gradient_is_infinite_and_halves_its_scale(fused: bool) -> None:
    expected, expected_scales, cpu_model = train_scaled("cpu", poisoned=1)
    run, scales, model = train_scaled(DEVICE, poisoned=1, fused=fused)
    assert scales == expected_scales
    assert scales[1] == scales[0] / 2
    torch.testing.assert_close(torch.tensor(run.losses), torch.tensor(expected.losses), rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(model.parameters(), cpu_model.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)


def test_autocast_has_the_op_lists_of_cuda() -> None:
    def ops_of(key: str) -> set[str]:
        names = torch._C._dispatch_get_all_op_names()
        return {n for n in names if torch._C._dispatch_has_kernel_for_dispatch_key(n, key)}

    theirs = {n for n in ops_of("AutocastCUDA") if "cudnn" not in n}
    assert len(theirs) > 100
    assert {n for n in ops_of("AutocastPrivateUse1") if n.startswith("aten::")} == theirs


def test_a_custom_function_sees_the_dtypes_it_asked_for_forward_and_backward() -> None:
    seen = []

    class InFloat32(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=DEVICE, cast_inputs=torch.float32)
        def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
            seen.append((x.dtype, torch.is_autocast_enabled(DEVICE)))
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type=DEVICE)
        def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
            seen.append((grad.dtype, torch.is_autocast_enabled(DEVICE)))
            return grad @ x.T + x.T @ grad

    class AsSurrounded(InFloat32):
        @staticmethod
        @torch.amp.custom_fwd(device_type=DEVICE)
        def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
            seen.append((x.dtype, torch.is_autocast_enabled(DEVICE)))
            ctx.save_for_backward(x)
            return x @ x

    for function, inside in ((InFloat32, (torch.float32, False)), (AsSurrounded, (torch.float16, True))):
        x = on_device(A @ B).requires_grad_()
        with torch.autocast(DEVICE, torch.float16):
            y = function.apply(x @ x)
        y.float().sum().backward()
        assert seen == [inside, (y.dtype, inside[1])]
        assert x.grad is not None and x.grad.dtype == torch.float32
        seen.clear()


def test_a_weight_is_cast_once_per_autocast_block_unless_the_cache_is_off() -> None:
    weight, x = on_device(B).requires_grad_(), on_device(A).bfloat16()
    recorded = []
    for cached in (True, False):
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=cached):
            _ = x @ weight
            before = getattr(torch, DEVICE).metrics()["ops_recorded"]
            _ = x @ weight
            recorded.append(getattr(torch, DEVICE).metrics()["ops_recorded"] - before)
    assert recorded[1] == recorded[0] + 1


def test_autocast_decorates_nests_and_refuses_other_dtypes() -> None:
    @torch.autocast(DEVICE, torch.bfloat16)
    def product() -> Tensor:
        with torch.autocast(DEVICE, torch.float16):
            assert (on_device(A) @ on_device(B)).dtype == torch.float16
        return on_device(A) @ on_device(B)

    assert product().dtype == torch.bfloat16
    with (
        pytest.warns(UserWarning, match="only supports dtypes of torch.bfloat16, torch.float16"),
        torch.autocast(DEVICE, torch.float64),
    ):
        assert (on_device(A) @ on_device(B)).dtype == torch.float32


def test_autocast_refuses_the_loss_that_needs_more_range() -> None:
    with torch.autocast(DEVICE), pytest.raises(RuntimeError, match="unsafe to autocast"):
        functional.binary_cross_entropy(on_device(torch.rand(3)), on_device(torch.rand(3)))


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
def test_the_scaler_divides_finds_infinities_and_keeps_its_state(fused: bool) -> None:
    states = []
    for device in ("cpu", DEVICE):
        weight = nn.Parameter(torch.ones(3, device=device))
        optimizer = optim.SGD([weight], lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler(device, init_scale=4.0, growth_interval=2)
        for gradient in ([1.0, 2.0, 3.0], [float("nan"), 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]):
            optimizer.zero_grad()
            scaler.scale((weight * torch.tensor(gradient, device=device)).sum()).backward()
            scaler.unscale_(optimizer)
            states.append(weight.grad.cpu().tolist())  # type: ignore[union-attr]
            with pytest.raises(RuntimeError, match="already been called"):
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            states.append([*weight.detach().cpu().tolist(), scaler.get_scale(), scaler.state_dict()["_growth_tracker"]])
        other = torch.amp.GradScaler(device)
        other.load_state_dict(scaler.state_dict())
        assert other.state_dict() == scaler.state_dict()
    half = len(states) // 2
    assert str(states[half:]) == str(states[:half])  # as text: nan is nan
    assert states[0] == [1.0, 2.0, 3.0]


def test_a_disabled_scaler_does_nothing() -> None:
    scaler = torch.amp.GradScaler(DEVICE, enabled=False)
    loss = torch.ones((), device=DEVICE)
    assert scaler.scale(loss) is loss
    assert scaler.state_dict() == {}
