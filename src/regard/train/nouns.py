"""What is counted when a model is asked: tokens of a text, and of everything else what it is called."""

from regard import config

COUNTED = {"forecast": "values", "nodes": "nodes", "contrast": "pairs", "pixels": "values"}  # by the kind of a task
# by the kind of a front end
SEEN = {"text": "texts", "chunks": "texts", "patches": "images", "stages": "images", "convolutions": "images",
        "sound": "sounds", "series": "series", "film": "films", "graph": "graphs"}  # fmt: skip


def counted(task: config.Task, model: config.Model) -> str:
    """Who is counted one by one in a loss: whole examples where one vector is asked, else what the task asks of."""
    if task.kind in COUNTED:
        return COUNTED[task.kind]
    return SEEN.get(model.embed.kind, "examples") if model.head.kind == "pooled" else "tokens"
