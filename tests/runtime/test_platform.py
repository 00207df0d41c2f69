"""The platform that runs the device: found late, named in errors, never in the way of programs that do not use it."""

from __future__ import annotations

import importlib.util

import pytest

from ..process import output, python


def test_import_torch_neither_imports_jax_nor_prints() -> None:
    done = python("import torch, sys; assert 'jax' not in sys.modules and 'torch_pjrt' in sys.modules")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_program_on_the_cpu_starts_no_client_and_imports_no_jax() -> None:
    assert output("""
        import sys
        import torch
        torch.manual_seed(0)
        layer = torch.nn.Linear(2, 2)
        layer(torch.ones(1, 2)).sum().backward()
        torch.optim.AdamW(layer.parameters()).step()
        print(torch.accelerator.is_available(), torch.pjrt.is_initialized(), "jax" in sys.modules)
        torch.ones(1, device="pjrt").tolist()
        print(torch.pjrt.is_initialized())
    """).split() == ["True", "False", "False", "True"]


def test_the_device_can_be_called_as_a_program_expects() -> None:
    assert output(
        """
        import torch
        x = torch.ones(2, device="tpu")
        print(x.device, x.is_tpu, torch.tpu.device_count(), torch.accelerator.current_accelerator())
        print(torch.get_device_module("tpu").get_device_properties().platform)
        """,
        TORCH_PJRT_DEVICE_NAME="tpu",
    ).split() == ["tpu:0", "True", "1", "tpu", "cpu"]
    refused = python("import torch", TORCH_PJRT_DEVICE_NAME="My Device")
    assert "expected lower-case letters" in refused.stderr


@pytest.mark.parametrize(
    ("platform", "advice"),
    [("nonsense", "Platforms with a known plugin: cpu, tpu, cuda"), ("tpu", "pip install 'torch-pjrt[tpu]'")],
)
def test_a_platform_that_is_missing_is_an_error_with_the_plugins_found_and_how_to_install(
    platform: str, advice: str
) -> None:
    if platform == "tpu" and importlib.util.find_spec("libtpu") is not None:
        pytest.skip("its plugin is installed here")
    lines = output(
        """
        import torch
        x = torch.ones(2, requires_grad=True)
        (x * 2).sum().backward()
        print(x.grad.tolist(), torch.pjrt.is_available(), torch.accelerator.is_available())
        try:
            torch.ones(2, device="pjrt").tolist()
        except RuntimeError as error:
            print(error)
        """,
        TORCH_PJRT_PLATFORM=platform,
        TORCH_PJRT_DEVICE_NAME="pjrt",
    ).splitlines()
    assert lines[0] == "[2.0, 2.0] False False"
    assert f"'{platform}'" in lines[1]
    assert "PJRT plugins found: cpu" in lines[1]
    assert advice in lines[1]


def test_a_forked_child_gets_an_error_where_it_would_hang_and_the_parent_goes_on() -> None:
    assert output("""
        import os, sys
        import torch
        x = torch.ones(3, device="pjrt")
        x.tolist()
        if (child := os.fork()) == 0:
            for use in (lambda: (x + 1).tolist(), lambda: torch.ones(2).to("pjrt"), torch.pjrt.synchronize):
                try:
                    use()
                    print("worked")
                except RuntimeError as error:
                    print("spawn" in str(error))
            torch.manual_seed(0)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        print((x + 1).tolist())
    """).splitlines() == ["True", "True", "True", "[2.0, 2.0, 2.0]"]


def test_a_child_may_use_the_device_if_its_parent_has_not() -> None:
    assert output("""
        import os, sys
        import torch
        if (child := os.fork()) == 0:
            print(torch.ones(2, device="pjrt").tolist())
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        print(torch.zeros(1, device="pjrt").tolist())
    """).splitlines() == ["[1.0, 1.0]", "[0.0]"]


def test_the_workers_of_a_data_loader_feed_a_device_in_use() -> None:
    assert (
        output("""
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        total = torch.zeros((), device="pjrt")
        total.item()
        data = TensorDataset(torch.arange(8.0))
        for (batch,) in DataLoader(data, batch_size=2, num_workers=2, shuffle=True):
            total += batch.to("pjrt").sum()
        print(total.item())
    """).strip()
        == "28.0"
    )
