"""Linear attention's loops for a GPU, run by Triton's interpreter on a CPU: the same sums and gradients."""

import subprocess
import sys

import pytest
import torch

from regard.gpu import linear_attention

SCRIPT = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch
import torch.nn.functional as F
from regard.gpu import linear_attention as swift

swift.PROGRAMS = 9  # several segments
torch.manual_seed(0)
for batch, heads, count, d, e in [(2, 3, 150, 16, 32), (1, 2, 64, 32, 16), (1, 1, 3, 16, 16), (2, 1, 333, 16, 16)]:
    q, k, v = (torch.randn(batch, count, heads, width).transpose(1, 2).requires_grad_() for width in (d, d, e))
    weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
    theirs, ours = weights / weights.sum(-1, keepdim=True) @ v, swift.linear_attention(q, k, v)
    up = torch.randn_like(theirs)
    pairs = [(ours, theirs), *zip(*(torch.autograd.grad(out, (q, k, v), up) for out in (ours, theirs)))]
    for a, b in pairs:
        assert (a - b).abs().max() < 2e-6 * max(1, b.abs().max()), (count, (a - b).abs().max())
print(swift.split_segments(q)[0], "segments")
"""


@pytest.mark.slow
@pytest.mark.spec("S115")
def test_the_loops_are_the_table_with_its_upper_half_left_out():
    if not linear_attention.HAS_TRITON_LINEAR:
        pytest.skip("Triton is not installed (it comes with torch for CUDA)")

    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 1


def test_shapes_are_known_without_running_anything():
    q, k, v = (torch.empty(2, 3, 130, width, device="meta", requires_grad=True) for width in (16, 16, 32))

    out = linear_attention.linear_attention_forward(q, k, v)[0]
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), torch.empty_like(out))

    assert out.shape == v.shape and [x.shape for x in (dq, dk, dv)] == [x.shape for x in (q, k, v)]
    assert out.transpose(1, 2).is_contiguous()  # heads are joined without a copy


def test_segments_are_whole_chunks_and_cover_every_place():
    for count in (1, 64, 65, 5000, 65_536, 1_000_003):
        segments, length = linear_attention.split_segments(torch.empty(1, 16, count, 64, device="meta"))
        assert length % linear_attention.CHUNK == 0 and (segments - 1) * length < count <= segments * length
        assert segments * 16 <= 2 * linear_attention.PROGRAMS
