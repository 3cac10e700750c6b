"""A few pictures with captions, small models that see and read, and the objectives that are asked of them."""

import torch

import regard
from regard import config as C
from regard import tasks
from regard.data.records import Record
from regard.inputs.processors import build_processor
from regard.tasks.collate import RowPadding
from regard.text.trainers import train_tokenizer

TEXTS = ["red heart", "blue car", "a dog", "two dogs", "a green apple"]
LABELS = ["sign", "thing", "animal", "animal", "food"]
SIDE, D, N = 8, 12, 15
FRONT = C.PatchEmbedding(patch_size=4, image_size=SIDE, cls_tokens=False)
SMALL = dict(dim=D, depth=1, attention=C.Attention(heads=3), mlp=C.MLP(hidden=20), dropout=C.NO_DROPOUT)


def pictures():
    chance = torch.Generator().manual_seed(3)
    return torch.randint(256, (len(TEXTS), 3, SIDE, SIDE), generator=chance, dtype=torch.uint8)


def records():
    rows = zip(pictures(), TEXTS, LABELS, strict=True)
    return [Record({"image": image, "text": text, "label": label}, f"pairs:{number}")
            for number, (image, text, label) in enumerate(rows, 1)]  # fmt: skip


def words(c=None):
    tokenizer = train_tokenizer(
        C.CharTokenizer(byte_fallback=False), ["".join(sorted(set("".join([*TEXTS, *LABELS]))))]
    )
    return tokenizer if c is None else tasks.add_task_tokens(c, tokenizer)


def tower(embed, mask="full", **head):
    position = C.LearnedPosition(length=N if isinstance(embed, C.TextEmbedding) else (2, 2))
    return C.Transformer(embed=embed, trunk=C.Trunk(mask=mask, position=position, **SMALL),
                         head=C.PoolingHead(**{"pooling": "mean", "out": 7, "bias": False, **head}))  # fmt: skip


def towers(vocab=None, **said):
    return C.DualEncoder(towers=(tower(FRONT), tower(C.TextEmbedding(vocab=vocab or len(words())))), **said)


def crossing(vocab):
    """An encoder that sees, and a decoder that writes."""
    return C.Transformer(
        embed=C.TextEmbedding(vocab=vocab),
        trunk=C.Trunk(mask="causal", cross="last", position=C.LearnedPosition(length=N), **SMALL),
        encoder=C.Encoder(embed=FRONT, trunk=C.Trunk(position=C.LearnedPosition(length=(2, 2)), **SMALL)),
    )


def prefixed(vocab, mask="prefix(4)"):
    """Both in one sequence."""
    return C.Transformer(embed=C.MultimodalEmbedding(prefix=FRONT, text=C.TextEmbedding(vocab=vocab)),
                         trunk=C.Trunk(mask=mask, position=C.LearnedPosition(length=4 + N), **SMALL))  # fmt: skip


def drawing(vocab, context):
    return C.Transformer(embed=C.TextEmbedding(vocab=vocab),
                         trunk=C.Trunk(mask="causal", position=C.LearnedPosition(length=context), **SMALL))  # fmt: skip


def asked(c, model, front=FRONT, length=N, **how):
    tokenizer = words(c)
    return tasks.build_task(
        c, tokenizer, model, rows=RowPadding(length), sense=build_processor(front), **how
    ), tokenizer


def batch(task, tokenizer, rows=slice(None)):
    made = [task.example(record, tokenizer) for record in records()[rows]]
    return task.collate_eval(made, torch.Generator())


def lively(c):
    """A model with every weight moved from where it begins, so that nothing is equal by luck."""
    model = regard.build(c).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return model
