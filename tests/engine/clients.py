"""Requests for an engine, and what was told of each: for tests."""

import random
from dataclasses import dataclass, field

from generation.builders import POSITIONS, V, lively, model

from regard import config as C
from regard.engine.engine import Engine
from regard.engine.request_queue import GenerationRequest, QueueFull, RequestTicket, TokenEvent
from regard.generation.params import GenerationDefaults
from regard.inference.model import Model

HOT = dict(temperature=1.3)
WAYS = [
    {},
    HOT,
    HOT | {"top_p": 0.9, "repetition_penalty": 1.2},
    {"frequency_penalty": 0.5},
    HOT | {"no_repeat_ngram_size": 2},
]


def mixed(mixer: C.Mixer) -> Model:
    return model(POSITIONS["none"], mixer=mixer)


def stacked(cell: str) -> Model:
    c = C.Transformer(
        embed=C.TextEmbedding(vocab=V),
        trunk=C.RecurrentStack(dim=12, depth=2, cell=cell, mask="causal", dropout=0.0),
        head=C.LMHead(tied=False),
    )
    return lively(c)


MODELS = {
    "learned": lambda: model(POSITIONS["learned"]),
    "grouped": lambda: model(attention=C.Attention(heads=4, kv_heads=2, head_dim=6)),
    "alibi": lambda: model(POSITIONS["alibi"]),
    "window": lambda: model(mask="causal & window(5)"),
    "prefix": lambda: model(mask="prefix(4)"),
    "linear": lambda: model(POSITIONS["sinusoidal"], attention=C.Attention(heads=3, head_dim=4, kernel="linear")),
    "space": lambda: mixed(C.StateSpaceMixer()),
    "lstm": lambda: stacked("lstm"),
    "cnn": lambda: stacked("cnn"),
}


def small(name: str, double: bool = False) -> Model:
    """One of the models in float32, with an end token that does come."""
    one = MODELS[name]()
    one.generation_defaults = GenerationDefaults(ends=frozenset({3}))
    return one if double else one.float()


@dataclass(eq=False)
class Client:
    """Asks, and keeps all that it hears."""

    asked: GenerationRequest
    told: list[TokenEvent] = field(default_factory=list)
    ticket: RequestTicket | None = None

    def hear(self, told: TokenEvent) -> None:
        self.told.append(told)

    @property
    def ids(self) -> list[int]:
        return [each.id for each in self.told if each.id is not None]

    @property
    def bits(self) -> list[tuple]:
        """Everything but how it was come by."""
        return [(each.id, each.logprob, each.others, each.reason) for each in self.told]

    @property
    def reason(self) -> str | None:
        return self.told[-1].reason if self.told else None


def client(ids, *, logprobs: int = 0, rule=None, **settings) -> Client:
    return Client(
        GenerationRequest(
            ids=tuple(ids),
            c=C.SamplingParams(**dict(temperature=0.0, max_new_tokens=9) | settings),
            rule=rule,
            logprobs=logprobs,
        )
    )


def ask(engine: Engine, *clients: Client) -> None:
    for one in clients:
        one.ticket = engine.submit(one.asked, one.hear)


def run(engine: Engine, *clients: Client) -> None:
    """All of them, until nothing is left."""
    ask(engine, *clients)
    while engine.step():
        pass


def alone(one: Client, engine: Engine) -> list[tuple]:
    """What the same request is told when nobody else is there."""
    again = Client(one.asked)
    run(engine, again)
    return again.bits


def some(dice: random.Random, count: int, longest: int) -> list[Client]:
    """Requests of all kinds; half of them begin alike."""
    shared, made = [dice.randrange(V) for _ in range(longest)], []
    for seed in range(count):
        ids = [dice.randrange(V) for _ in range(dice.randint(4, longest))]
        ids = shared[: dice.randint(0, longest - 1)] + ids[:4] if dice.random() < 0.5 else ids
        how = dice.choice(WAYS)
        made.append(
            client(ids[:longest], max_new_tokens=dice.randint(1, 12), seed=seed, logprobs=dice.choice([0, 0, 3]), **how)
        )
    return made


def play(engine: Engine, clients: list[Client], dice: random.Random) -> list[Client]:
    """They come when they like, and some leave in the middle; those who stayed to the end."""
    coming, here = list(clients), []
    while coming or engine.busy:
        for _ in range(min(len(coming), dice.choice([0, 0, 1, 1, 4]))):
            try:
                ask(engine, coming[0])
                here.append(coming.pop(0))
            except QueueFull:
                break
        if here and dice.random() < 0.1:
            dice.choice(here).ticket.cancel()
        engine.step()
    return [one for one in clients if one.reason != "cancelled"]
