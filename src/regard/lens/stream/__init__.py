"""The residual stream decoded: logit lens, tuned lens, and the predictions they are compared with."""
