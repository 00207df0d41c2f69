"""Train a small ViT or ResNet on scikit-learn's 1,797 handwritten digits, on any PyTorch device.

python examples/train_digits.py --model vit --device cpu
python examples/train_digits.py --model resnet --device pjrt
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from statistics import median

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

CLASSES = 10
SIZE = 8  # pixels on a side


class Block(nn.Module):
    """A pre-norm transformer block: attention, then an MLP, each added to what came in."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm_attention = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm_mlp = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(self.norm_attention(x)).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, dim)
        x = x + F.dropout(self.out(attended), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.norm_mlp(x)), self.dropout, self.training)


class ViT(nn.Module):
    """A vision transformer: overlapping 4x4 patches, two pixels apart, learned positions, mean over the tokens."""

    def __init__(self, dropout: float, dim: int = 64, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, dim, kernel_size=4, stride=2, padding=1)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (SIZE // 2) ** 2, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(dim=1))


class Residual(nn.Module):
    """Two 3x3 convolutions with batch norm, added to what came in (through a 1x1 convolution where shapes differ).

    SiLU, not ReLU, so that runs on two devices can be compared: with ReLU, initial weights changed by one unit in the
    last place move the loss by 0.7 % and 5 % within 88 steps (two random changes), with SiLU by less than 3e-7.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.norm1(self.conv1(x)))
        return F.silu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem and one residual block for each of three resolutions: 8x8, 4x4, 2x2."""

    def __init__(self, dropout: float, widths: tuple[int, ...] = (16, 32, 64)) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.SiLU()
        )
        stages = zip((widths[0], *widths), widths, (1, 2, 2), strict=False)
        self.blocks = nn.Sequential(*(Residual(i, o, stride) for i, o, stride in stages))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(widths[-1], 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)))


MODELS = {"vit": ViT, "resnet": ResNet}


@dataclass
class History:
    """What a training run was like."""

    losses: list[float] = field(default_factory=list)  # one per step
    step_seconds: list[float] = field(default_factory=list)  # one per epoch: its wall time over its steps
    accuracy: float = 0.0  # on the test set, after the last epoch


def digits(seed: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """(training, test) batches of (images of 1x8x8 in [-1, 1], labels); the test set is one batch of 360."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, SIZE, SIZE) / 8 - 1
    y = torch.tensor(labels)
    train, test = train_test_split(range(len(y)), test_size=360, stratify=labels, random_state=seed)
    shuffle = torch.Generator().manual_seed(seed)
    # drop_last: a smaller last batch would be another shape, which a compiling device has to compile once more.
    return (
        DataLoader(TensorDataset(x[train], y[train]), batch_size, shuffle=True, drop_last=True, generator=shuffle),
        DataLoader(TensorDataset(x[test], y[test]), len(test)),
    )


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Every image moved by -1, 0 or 1 pixel (mostly 0) down and across: augmentation for handwriting."""
    moves = torch.tensor([-1, 0, 0, 0, 0, 1])[torch.randint(0, 6, (2, len(images)), generator=generator)]
    rows, columns = 1 + moves[..., None] + torch.arange(SIZE)
    framed = F.pad(images.squeeze(1), (1, 1, 1, 1), value=-1.0)
    each = torch.arange(len(images))[:, None, None]
    return framed[each, rows[:, :, None], columns[:, None, :]].unsqueeze(1)


def train(
    name: str,
    device: str,
    epochs: int = 15,
    batch_size: int = 64,
    lr: float = 4e-3,
    dropout: float = 0.1,
    augment: bool = True,
    seed: int = 0,
) -> History:
    """Train `MODELS[name]` on `device` and measure it on the test set."""
    torch.manual_seed(seed)
    model = MODELS[name](dropout).to(device)
    batches, test = digits(seed, batch_size)
    steps = epochs * len(batches)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=steps, pct_start=0.2)
    augmentation = torch.Generator().manual_seed(seed)

    history = History()
    progress = tqdm(total=steps, desc=f"{name} on {device}", unit="step")
    for _ in range(epochs):
        model.train()
        start = time.perf_counter()
        losses = []
        for images, labels in batches:
            if augment:
                images = shifted(images, augmentation)
            images, labels = images.to(device), labels.to(device)
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
            schedule.step()
            # Not loss.item(): that would make the program wait for the device in every step, and the device for
            # the program in turn. The tensors are read together at the end of the epoch.
            losses.append(loss.detach())
            progress.update()
        history.losses += torch.stack(losses).tolist()
        history.step_seconds.append((time.perf_counter() - start) / len(losses))
        progress.set_postfix(loss=f"{history.losses[-1]:.4f}")
    progress.close()
    history.accuracy = accuracy(model, test, device)
    return history


@torch.no_grad()
def accuracy(model: nn.Module, batches: DataLoader, device: str) -> float:
    """The share of `batches` that `model` names rightly."""
    model.eval()
    right = sum((model(x.to(device)).argmax(1) == y.to(device)).sum() for x, y in batches)
    return float(right) / len(batches.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="vit")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--augment", action=argparse.BooleanOptionalAction, default=True, help="shift the images")
    parser.add_argument("--seed", type=int, default=0)
    args = vars(parser.parse_args())
    history = train(args.pop("model"), **args)
    print("loss per step:", " ".join(f"{loss:.4f}" for loss in history.losses))
    print("ms per step, by epoch:", " ".join(f"{1000 * s:.1f}" for s in history.step_seconds))
    print(f"median {1000 * median(history.step_seconds):.1f} ms per step, test accuracy {history.accuracy:.2%}")


if __name__ == "__main__":
    main()
