"""Attribution: a logit as the sum of its parts, and an output attributed to the inputs of a model."""
