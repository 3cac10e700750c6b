"""Published checkpoints, both ways. The only room that has heard of other people's names."""
