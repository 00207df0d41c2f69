"""A test file as PyTorch's own are written: generic over devices, run by unittest, knowing nothing of this package."""

import torch
from torch.testing import make_tensor
from torch.testing._internal.common_device_type import (
    deviceCountAtLeast,
    dtypes,
    instantiate_device_type_tests,
    onlyCPU,
    onlyCUDA,
    onlyNativeDeviceTypes,
    onlyPRIVATEUSE1,
    ops,
    precisionOverride,
    skipMeta,
    tol,
    toleranceOverride,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db, modules
from torch.testing._internal.common_optimizers import optim_db, optims
from torch.testing._internal.common_utils import TestCase, freeze_rng_state, parametrize, run_tests
from torch.utils._pytree import tree_map_only

OPS = [op for op in op_db if op.full_name in ("addmm", "cumsum", "nn.functional.gelu")]
MODULES = [m for m in module_db if m.module_cls is torch.nn.Linear]
OPTIMIZERS = [o for o in optim_db if o.optim_cls is torch.optim.AdamW]


class TestGeneric(TestCase):
    def test_device(self, device):
        x = torch.ones(2, device=device)
        self.assertEqual(str(x.device), device)
        self.assertEqual(x, [1.0, 1.0])

    @dtypes(torch.float32, torch.bfloat16, torch.int64, torch.bool)
    def test_sort(self, device, dtype):
        x = make_tensor((3, 5), dtype=dtype, device=device)
        self.assertEqual(x.sort(stable=True).values, x.cpu().sort(stable=True).values)

    @dtypes(torch.complex64, torch.complex128)
    @precisionOverride({torch.complex64: 1e-4})
    def test_product(self, device, dtype):
        a, b = (make_tensor(shape, dtype=dtype, device=device) for shape in ((2, 3), (3, 4)))
        self.assertEqual(a @ b, a.cpu() @ b.cpu(), exact_device=False)

    @parametrize("dim", [0, -1])
    def test_flip(self, device, dim):
        x = torch.arange(6, device=device).reshape(2, 3)
        self.assertEqual(x.flip(dim).flip(dim), x)

    @onlyNativeDeviceTypes
    def test_on_native_devices(self, device):
        self.assertEqual(torch.arange(3, device=device), [0, 1, 2])

    @onlyPRIVATEUSE1
    def test_on_privateuse1(self, device):
        self.assertEqual(torch.device(device).type, torch._C._get_privateuse1_backend_name())

    @skipMeta
    def test_error(self, device):
        with self.assertRaisesRegex(IndexError, "Dimension out of range"):
            torch.ones(2, device=device).sum(3)

    @onlyCPU
    def test_on_cpu(self, device):
        self.assertEqual(device, "cpu")

    @onlyCUDA
    def test_on_cuda(self, device):
        raise AssertionError

    @deviceCountAtLeast(2)
    def test_two_devices(self, devices):
        first, second = devices[:2]
        self.assertEqual(torch.ones(2, device=first).to(second).device, torch.device(second))

    @ops(OPS, allowed_dtypes=(torch.float32, torch.int64))
    def test_op(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype):
            host = sample.transform(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x)
            got = op(sample.input, *sample.args, **sample.kwargs)
            self.assertEqual(got.device.type, torch.device(device).type)
            self.assertEqual(got, op(host.input, *host.args, **host.kwargs), exact_device=False)

    @ops([op for op in OPS if op.name == "addmm"], allowed_dtypes=(torch.float64,))
    def test_gradient(self, device, dtype, op):
        sample = next(iter(op.sample_inputs(device, dtype, requires_grad=True)))
        self.assertTrue(
            torch.autograd.gradcheck(lambda *args: op(*args, **sample.kwargs), (sample.input, *sample.args))
        )

    @modules(MODULES, allowed_dtypes=(torch.float32,))
    @toleranceOverride({torch.float32: tol(atol=1e-5, rtol=1e-5)})
    def test_module(self, device, dtype, module_info, training):
        for sample in module_info.module_inputs_func(
            module_info, device=device, dtype=dtype, requires_grad=True, training=training
        ):
            with freeze_rng_state():
                m = module_info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
            m.to(device, dtype).train(training)
            args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
            got = m(*args, **kwargs)
            host_args, host_kwargs = tree_map_only(torch.Tensor, torch.Tensor.cpu, (args, kwargs))
            self.assertEqual(got, m.cpu()(*host_args, **host_kwargs), exact_device=False)

    @optims(OPTIMIZERS, dtypes=[torch.float32])
    def test_optimizer(self, device, dtype, optim_info):
        left = []
        for where in ("cpu", device):
            p = torch.nn.Parameter(torch.arange(4, dtype=dtype, device=where))
            optimizer = optim_info.optim_cls([p], lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                p.square().sum().backward()
                optimizer.step()
            left.append(p.detach().cpu())
        self.assertEqual(left[0], left[1])


instantiate_device_type_tests(TestGeneric, globals())

if __name__ == "__main__":
    run_tests()
