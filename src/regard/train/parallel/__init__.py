"""Many processes that train one model: `torchrun --nproc-per-node 4 -m regard train RECIPE`.

    ranks     who they are, which rows of a batch each takes, what they tell each other
    group     how they come together, and how all learn what went wrong for one
    pulse     how they know of each other that they live
    models    a model on every rank (DDP), or a part of it on each (FSDP)
    shards    what lies in parts, brought together for a checkpoint and taken apart again
"""

from regard.train.parallel.group import together
from regard.train.parallel.ranks import ALONE, Ranks

__all__ = ["ALONE", "Ranks", "together"]
