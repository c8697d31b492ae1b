"""Two texts of many kinds for measurements at the start, as token ids of a model."""

from pathlib import Path

import numpy as np

_TOKENIZER = "tokenizer.json"

_PROSE = """The river had been rising since Tuesday. By the time the mayor called the meeting,
water stood in the cellars along Mill Street, and the bakery had moved its flour to the school.
"We have two days," she said, "perhaps three. Whoever owns a boat, please stay behind." Nobody left.
In 1953 the gauge at the bridge had shown 7.42 metres; on Thursday at 06:15 it showed 7.31, and the
rain went on.

def mean(values: list[float]) -> float:
    \"\"\"The average; an empty list has none.\"\"\"
    if not values:
        raise ValueError("mean() of an empty list")
    return sum(values) / len(values)

Q: Why is the sky blue?
A: Air scatters short wavelengths more than long ones, so blue reaches the eye from every side.
{"order": 1187, "items": [{"sku": "A-20", "qty": 3, "price": 4.95}], "paid": true}
Der Zug nach Hamburg faehrt um 8 Uhr von Gleis 12 ab. Il fait beau aujourd'hui, mais froid."""

_OTHER = """Write a short report about the test. First, 40 seeds were put on wet paper, half in
the light and half in the dark; after nine days the lengths were measured. Those in the dark were
longer (mean 61 mm against 38 mm) but pale, and most of them fell over. The explanation is simple: a
plant that sees no light spends all it has on reaching some.

SELECT customer, SUM(total) AS spent FROM orders WHERE placed >= '2024-01-01'
GROUP BY customer HAVING SUM(total) > 1000 ORDER BY spent DESC LIMIT 10;

- Mix 200 g of flour with two eggs and a pinch of salt.
- Rest the dough for half an hour, then roll it thin.
1 + 1 = 2, 12 * 12 = 144, 2 ** 10 = 1024, 355 / 113 = 3.1415929...
"Have you seen my glasses?" asked the old man. "They are on your nose," said the child, and both of
them laughed until the dog began to bark. Buenos dias, me llamo Ana y vivo en una ciudad pequena.
Error: connection refused (os error 111) at src/main.rs:42"""


TEXTS = (_PROSE, _OTHER)
"""The first finds scales, the second judges them."""


def calibration_texts(folder: Path, vocab_size: int) -> tuple[list[int], list[int]]:
    """Token ids of both texts, special tokens at the start as the tokenizer adds them.

    A folder without tokenizer.json (tests have such) gives ids drawn from the whole vocabulary.
    """
    path = folder / _TOKENIZER
    if not path.is_file():
        draws = np.random.default_rng(0).integers(0, vocab_size, (2, 256))
        return draws[0].tolist(), draws[1].tolist()
    from tokenizers import Tokenizer  # a start without FP8 need not pay for it

    tokenizer = Tokenizer.from_file(str(path))
    first, second = (
        [token for token in tokenizer.encode(text).ids if token < vocab_size] for text in TEXTS
    )
    return first, second
