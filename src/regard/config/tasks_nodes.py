"""What can be said about nodes as an objective: one graph, some of whose nodes have a class that is known."""

from typing import Literal

from regard.config.setting import setting


@setting
class Nodes:
    """Which of the `classes` each node of one graph is; without classes they are found in the graph.

    The whole graph is read in every step, and the nodes of its part "train" alone teach (Kipf and Welling 2017).
    `part` are the nodes that are asked to validate and to evaluate.
    """

    kind: Literal["nodes"] = "nodes"
    classes: tuple[str, ...] = ()
    part: Literal["train", "validation", "test"] = "validation"

    def __post_init__(self) -> None:
        if len(set(self.classes)) < len(self.classes) or len(self.classes) == 1:
            raise ValueError(f"classes: {list(self.classes)} are not two or more different ones")
