"""`torch-pjrt plan`: what it prints, returns and writes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path

import pytest

import torch_pjrt
from torch_pjrt.command import main
from torch_pjrt.plan import MeshError

TRAIN = """
import torch
from torch import nn

def make_step(batch=2):
    model = nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return step, [torch.ones(batch, 8)]

def broken():
    raise ValueError("mine")

def broken_step():
    return lambda x: x @ torch.ones(5, 5), [torch.ones(2, 3)]

def no_pair():
    return 3
"""


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TORCH_PJRT_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "train_it.py"
    file.write_text(TRAIN)
    return str(file)


def test_a_plan_for_this_machine_is_compiled_in_a_process_of_its_own(
    train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "plan.json"
    status = main(
        ["plan", f"{train}:make_step", "--topology", "cpu", "--batch", "16", "--json", str(written), "--html",
         str(tmp_path / "plan.html")]
    )  # fmt: skip
    shown = capsys.readouterr()
    assert status == 0, shown
    assert "cpu" in shown.out and "36 parameters" in shown.out
    row = json.loads(written.read_text())["rows"][0]
    # weight, bias and two moments of each, two step counts, the batch: all float32.
    assert row["memory"]["arguments"] == 4 * (3 * 36 + 2 + 16 * 8)
    assert row["memory"]["donated"] == 4 * (3 * 36 + 2)
    assert row["batch"] == 16
    assert row["model_flops"] == 2 * 2 * 16 * 8 * 4
    assert "<svg" in (tmp_path / "plan.html").read_text()
    assert "compiled for cpu" in shown.err


@pytest.mark.parametrize(
    ("entry", "topology", "words"),
    [
        ("train_it.py:make_step", "v7:2x2", "no chip 'v7'.*Known: v5e"),
        ("train_it.py:absent", "cpu", "no function 'absent'; it has make_step, broken, broken_step, no_pair"),
        ("absent.py:f", "cpu", "absent.py: no such file"),
        ("train_it.py", "cpu", "names no function"),
        ("train_it.py:no_pair", "cpu", r"must return \(step, example_inputs\).*returned int"),
        ("hf:absent.json", "cpu", "no such file"),
    ],
)
def test_a_mistake_is_one_line(
    train: str, entry: str, topology: str, words: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(os.path.dirname(train))
    assert main(["plan", entry, "--topology", topology]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert "Traceback" not in "".join(said)
    assert re.search(words, said[-1]), said


def test_a_mesh_that_does_not_divide_is_a_mistake(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"{train}:make_step", "--topology", "v5e:2x2", "--mesh", "fsdp=3"]) == 2
    assert "3 = 3 devices, the topology has 4" in capsys.readouterr().err


@pytest.mark.parametrize(("function", "line"), [("broken", "raise ValueError"), ("broken_step", "lambda x")])
def test_what_the_users_program_raises_is_shown_with_its_traceback(
    train: str, function: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", f"{train}:{function}", "--topology", "cpu"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said and line in said and "train_it.py" in said
    assert "torch_pjrt" not in said


def test_without_the_compiler_the_message_says_how_to_install_it(
    train: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "libtpu" else found(name))
    assert main(["plan", f"{train}:make_step", "--topology", "v5e:2x2"]) == 2
    assert "pip install 'torch-pjrt[plan]'" in capsys.readouterr().err


def test_the_module_is_the_function() -> None:
    with pytest.raises(MeshError, match="3 = 3 devices"):
        torch_pjrt.plan(lambda: None, topology="v5e:2x2", mesh="fsdp=3")  # type: ignore[operator]
