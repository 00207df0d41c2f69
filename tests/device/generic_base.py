"""What `TORCH_TEST_DEVICES` may name: a base class of one's own for the device, here one that leaves a test out.

PyTorch executes this file with the globals of its `common_device_type`, and asks that it not be imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.testing._internal.common_device_type import PrivateUse1TestBase

LEFT_OUT = {"test_flip"}


class DeviceTestBase(PrivateUse1TestBase):
    # Of two classes of one name PyTorch keeps the later, which is this one: so its name must be that of its parent's.
    device_type = "privateuse1"

    @classmethod
    def instantiate_test(cls, name: str, test: Any, *, generic_cls: type | None = None) -> None:
        DeviceTestBase.setUpClass()  # the parent's does not say what this one's devices are
        if name not in LEFT_OUT:
            super().instantiate_test(name, test, generic_cls=generic_cls)


TEST_CLASS = DeviceTestBase
