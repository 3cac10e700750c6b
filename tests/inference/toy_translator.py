"""A toy translator: two kinds of sentences, word for word but for the order of adjectives, learnt in seconds.

    The cat sat.                                     ──►  Le chat dormit.
    The agreement on the European Economic Area ...  ──►  L'accord sur la zone économique européenne ...

Every word is drawn apart from the others, and the encoder reads each by itself, so nothing but looking at the right
word of the source tells the target.
"""

from functools import cache
from random import Random

import torch
from torch import nn

from regard import config as C
from regard import text
from regard.inference.model import Model
from regard.tasks.collate import RowPadding
from regard.tasks.task import build_task

NOUN = {"cat": "chat", "dog": "chien", "owl": "hibou", "king": "roi", "boy": "garçon", "wolf": "loup", "fox": "renard"}
VERB = {"sat": "dormit", "sang": "chanta", "ate": "mangea", "ran": "courut", "fell": "tomba", "won": "gagna"}
PACT = {"agreement": "accord", "opinion": "avis", "order": "ordre", "appeal": "appel", "plan": "essai", "help": "aide"}
FIRST = {
    "European": "européenne",
    "Italian": "italienne",
    "Swedish": "suédoise",
    "Roman": "romaine",
    "Greek": "grecque",
    "Polish": "polonaise",
    "Swiss": "suisse",
}
SECOND = {
    "Economic": "économique",
    "Military": "militaire",
    "Historic": "historique",
    "Private": "privée",
    "Secret": "secrète",
    "Open": "ouverte",
    "Modern": "moderne",
}
PLACE = {
    "Area": "zone",
    "Route": "route",
    "School": "école",
    "Bank": "banque",
    "House": "maison",
    "City": "ville",
    "Chapel": "chapelle",
}
MADE = {"signed": "signé", "sent": "envoyé", "lost": "perdu", "read": "lu", "found": "trouvé", "sold": "vendu"}
MONTH = {"August": "août", "May": "mai", "June": "juin", "March": "mars", "July": "juillet", "April": "avril"}
YEAR = {year: year for year in ("1992", "1815", "1957", "2004", "1789", "1648")}

LONGEST = 31
CAT = ("The cat sat.", "Le chat dormit.")
PACTS = (PACT, FIRST, SECOND, PLACE, MADE, MONTH, YEAR)
AREA = ("agreement", "European", "Economic", "Area", "signed", "August", "1992")  # the lecture's sentence
STEPS, BATCH, RATE = 300, 48, 5e-3


def short(noun: str, verb: str) -> tuple[str, str]:
    return f"The {noun} {verb}.", f"Le {NOUN[noun]} {VERB[verb]}."


def long(pact: str, first: str, second: str, place: str, made: str, month: str, year: str) -> tuple[str, str]:
    source = f"The {pact} on the {first} {second} {place} was {made} in {month} {year}."
    target = (f"L'{PACT[pact]} sur la {PLACE[place]} {SECOND[second]} {FIRST[first]} a été {MADE[made]} "
              f"en {MONTH[month]} {YEAR[year]}.")  # fmt: skip
    return source, target


def pairs(count: int, dice: Random) -> list[tuple[str, str]]:
    """Sentences that are none of the two that the tests ask about."""
    made = [short(dice.choice([*NOUN]), dice.choice([*VERB])) if dice.random() < 0.3
            else long(*(dice.choice([*words]) for words in PACTS)) for _ in range(count)]  # fmt: skip
    return [pair for pair in made if pair not in (CAT, long(*AREA))]


@cache
def speakers() -> tuple[text.Tokenizer, text.Tokenizer]:
    every = pairs(3000, Random(1))
    sides = [[side for side, _ in every], [side for _, side in every]]
    return tuple(text.train_tokenizer(C.WordTokenizer(vocab=150, byte_fallback=False), side) for side in sides)


def fresh(reads: text.Tokenizer, speaks: text.Tokenizer, **trunk) -> Model:
    """A small encoder-decoder that reads the words of one tokenizer and says those of another."""
    said = dict(dim=48, depth=1, attention=C.Attention(heads=1), dropout=C.NO_DROPOUT)
    said["position"] = C.LearnedPosition(length=LONGEST)
    c = C.Transformer(
        embed=C.TextEmbedding(vocab=len(speaks)), trunk=C.Trunk(**said | dict(mask="causal", cross="last") | trunk),
        encoder=C.Encoder(trunk=C.Trunk(**said, mask="window(0)"), embed=C.TextEmbedding(vocab=len(reads))),
    )  # fmt: skip
    model = Model(c)
    model.tokenizer, model.target_tokenizer = reads, speaks
    return model.eval()


@cache
def learnt() -> Model:
    torch.manual_seed(0)
    model, dice = fresh(*speakers()), Random(0)
    task = build_task(
        C.Translation(label_smoothing=0.0), model.tokenizer, rows=RowPadding(LONGEST), target=model.target_tokenizer
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    pace = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS)
    for _ in range(STEPS):
        said = [{"source": source, "target": target} for source, target in pairs(BATCH, dice)]
        batch = task.collate([task.example(one, model.tokenizer, model.target_tokenizer) for one in said], None)
        loss = task.loss_sums(model, batch)["loss"] / task.count_parts(batch)["loss"].count
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        pace.step()
    return model
