"""What `torch-pjrt plan` says of published training recipes, beside what was measured: `docs/plan-accuracy.md`.

    python -m benchmarks.plan_accuracy [--layers 8] [--only NAME] [--out FILE]

The published figures are model-flop utilizations of MaxText recipes, bf16, on the chips named. The model is the same
architecture in transformers, with the same batch, sequence, chips and full recomputing; with `--layers` fewer layers of
the same kind, which changes the utilization little (embedding and head weigh more) and saves tracing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_pjrt.plan import Settings, plan_entry
from torch_pjrt.plan.hugging_face import Recipe, hugging_face_entry

_MAXTEXT = "github.com/AI-Hypercomputer/maxtext, MaxText/configs"
_RECIPES = "github.com/AI-Hypercomputer/tpu-recipes, training"


@dataclass(frozen=True, slots=True)
class Published:
    """A recipe and what it reached.

    Attributes:
        name: of the row.
        architecture: what a Hugging Face configuration says of it.
        topology: as `plan` names it.
        batch: examples a device.
        fitting: the same, as planned for: less where it does not fit without what the recipe offloads to the host.
        sequence: tokens of an example.
        mfu: measured; TFLOP/s a chip over the documented peak where only that is published.
        source: where it is published.
    """

    name: str
    architecture: dict[str, Any]
    topology: str
    batch: int
    fitting: int
    sequence: int
    mfu: float
    source: str


def _llama(width: int, mlp: int, heads: int, kv: int, layers: int, vocabulary: int) -> dict[str, Any]:
    return {
        "model_type": "llama", "hidden_size": width, "intermediate_size": mlp, "num_attention_heads": heads,
        "num_key_value_heads": kv, "head_dim": 128, "num_hidden_layers": layers, "vocab_size": vocabulary,
        "tie_word_embeddings": False,
    }  # fmt: skip


# MaxText's own models are its base configuration scaled: global_parameter_scale 16 and 32.
_16B = _llama(4096, 28672, 64, 64, 32, 32000)
_32B = _llama(8192, 28672, 64, 64, 32, 32000)

ROWS = (
    Published("16B v5e-256", _16B, "v5e:16x16", 6, 6, 2048, 0.6110, f"{_MAXTEXT}/v5e/README.md, 16b.sh"),
    Published("32B v5e-256", _32B, "v5e:16x16", 4, 4, 2048, 0.6686, f"{_MAXTEXT}/v5e/README.md, 32b.sh"),
    Published("32B v5p-128", _32B, "v5p:4x4x4", 7, 7, 2048, 0.7147, f"{_MAXTEXT}/v5p/README.md, 32b.sh (there tp=4)"),
    Published(
        "Llama3.1-8B v6e-8", _llama(4096, 14336, 32, 8, 32, 128256), "v6e:2x4", 3, 3, 8192, 413.433 / 918,
        f"{_RECIPES}/trillium/Llama3.1-8B-MaxText/v6e-8",
    ),
    Published(
        "Mistral-7B v6e-8", _llama(4096, 14336, 32, 8, 32, 32000), "v6e:2x4", 6, 6, 8192, 431.981 / 918,
        f"{_RECIPES}/trillium/Mistral-7B-MaxText",
    ),
    Published(
        "Llama2-70B v6e-256", _llama(8192, 28672, 64, 8, 80, 32000), "v6e:16x16", 3, 3, 4096, 402.274 / 918,
        f"{_RECIPES}/trillium/Llama2-70B-MaxText",
    ),
    Published(
        "Llama3.1-70B tpu7x-64", _llama(8192, 28672, 64, 8, 80, 128256), "tpu7x:4x4x4", 2, 2, 8192, 1207.05 / 2307,
        f"{_RECIPES}/ironwood/README.md",
    ),
)  # fmt: skip


def planned(row: Published, layers: int | None, timeout: float) -> dict[str, Any]:
    """What `plan` says of a recipe."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "config.json"
        file.write_text(json.dumps(row.architecture))
        entry = hugging_face_entry(str(file), Recipe(sequence=row.sequence, layers=layers))
        found = plan_entry(entry, Settings((row.topology,), batch=row.fitting, remat=True, timeout=timeout), print)
    answer = found.rows[0]
    print(found, flush=True)
    said: dict[str, Any] = {
        "name": row.name,
        "published": row.mfu,
        "batch": row.fitting,
        "source": row.source,
        "failure": answer.failure,
    }
    if answer.time is not None and answer.mfu is not None:
        said |= {
            "planned": answer.mfu,
            "roofline": answer.mfu * answer.time.best / answer.time.roofline,
            "bound": answer.time.bound,
        }
    if answer.memory is not None:
        said |= {"memory": answer.memory.total, "capacity": answer.memory.capacity}
    return said | {"trace_seconds": found.trace_seconds, "compile_seconds": answer.compile_seconds}


def main() -> None:
    """Plan the recipes and write what came of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--timeout", type=float, default=1800.0)
    parser.add_argument("--out", default="plan_accuracy.json")
    asked = parser.parse_args()
    done: list[dict[str, Any]] = []
    for row in ROWS:
        if not asked.only or row.name in asked.only:
            done.append(planned(row, asked.layers, asked.timeout))
            Path(asked.out).write_text(json.dumps(done, indent=1))
    for said in done:
        reached = f"{said['planned']:.1%}" if "planned" in said else said["failure"] or "does not fit"
        print(f"{said['name']:24} published {said['published']:.1%}  planned {reached}")


if __name__ == "__main__":
    main()
