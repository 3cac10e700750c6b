"""A spectrogram read by two convolutions, as Whisper hears (Radford et al. 2022).

    samples ── windows around every hop-th ── log-mel ──►  (B, M, W)
    (B, M, W) ── 3 windows ── GELU ── 3 of them at every other one ── GELU ──►  a token for each pair of windows

Every sound is as long as the front end takes, filled with silence, and mirrored where it begins and ends: what it
means does not depend on the sounds beside it. M mel bands, W windows.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.core.tokens import Tokens, line
from regard.inputs.sound import WAYS, bands, hidden, levels


class Convolved(nn.Module):
    """Samples (B, T), or their spectrogram (B, M, W) as somebody else has made it, to Tokens."""

    def __init__(self, c: config.Sound, width: int) -> None:
        super().__init__()
        assert isinstance(c.way, config.Convolved)
        self.c, self.way = c, c.way
        self.first = nn.Conv1d(self.way.mels, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)

    def forward(self, samples: Tensor, real: Tensor | None, hide: Tensor | None = None) -> Tokens:
        """`hide` names parts of the spectrogram that are not heard, as for mel tokens."""
        table = samples if samples.dim() == 3 else self.spectrogram(samples)
        if hide is not None:
            table = table.masked_fill(hidden(hide, table.shape[2], table.shape[1]).mT, 0.0)
        x = F.gelu(self.first(table.to(self.first.weight.dtype)))
        return line(F.gelu(self.second(x)).mT)

    def spectrogram(self, samples: Tensor) -> Tensor:  # (B, T) -> (B, M, W)
        way, limit = self.way, self.c.limit
        with torch.autocast(samples.device.type, enabled=False):  # fewer bits would be heard
            whole = F.pad(samples.float(), (0, limit - samples.shape[1]))
            mirrored = F.pad(whole, (way.window // 2, way.window // 2), mode="reflect")
            frames = mirrored.unfold(1, way.window, way.hop)[:, : way.windows(limit)]
            return levels(bands(frames, way.spectrum, self.c.rate), self.c.normal).mT


WAYS["convolved"] = Convolved
