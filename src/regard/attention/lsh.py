"""LSH attention (Reformer: Kitaev et al. 2020): tokens attend within buckets of vectors with similar direction.

Large scores come from vectors of similar direction, which fall into the same bucket of a random hash. q and k are
therefore one vector (k is q at unit length): configs leave out the projection of k. A token attends to itself only if
there is no other: it would always be its own best key.

    token     0 1 2 3 4 5 6 7 8         each bucket is divided into chunks, in the order of its tokens;
    bucket    a b b a b a b b a         a chunk attends to itself and to the previous chunk of its bucket.
    chunks    0 3 5 │ 8 . . ║ 1 2 4 │ 6 7 .

Since no chunk has tokens of two buckets, the candidates of a token never depend on later ones. Several rounds of
hashing find missed keys; their outputs are weighted by the sums of their softmaxes. Letters: C chunks of S tokens, T =
2S.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.attention.causal_scan import accumulation_dtype
from regard.attention.cost import KERNEL_COSTS, AttentionField, KernelCost
from regard.attention.pairwise import apply_pair_bias, kernel_numbers, pair_bias
from regard.config.errors import ConfigError
from regard.core.kernels import AttentionArgs, AttentionSpec, Plan, register_kernel
from regard.core.layers import Attention

SIZE, ROUNDS = 64, 4
WIDEST = 64  # buckets for each of two hashes: 4,096 in all
SELF_SCORE, EMPTY_SCORE = -1e5, -1e30  # the score of a token with itself, and the log-sum of one without keys


class LSHRotations(nn.Module):
    """The random directions of the hash, for every round and for both halves of a bucket number."""

    w: Tensor

    def __init__(self, size: int, rounds: int, width: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("w", torch.zeros(rounds, 2, width, WIDEST // 2))
        if not self.w.is_meta:
            nn.init.normal_(self.w)

    def buckets(self, x: Tensor, turn: int) -> Tensor:  # (…, N, d) -> (…, N)
        """Cross-polytope hash: the nearest of several directions and their opposites, twice, for many buckets."""
        first, second = bucket_factors(x.shape[-2], self.size)
        codes = []
        for side, many in enumerate((first, second)):
            along = x @ self.w[turn, side, :, : many // 2].to(x.dtype)
            nearest = torch.cat([along, -along], -1).argmax(-1) if many > 1 else x.new_zeros(x.shape[:-1]).long()
            codes.append(nearest)  #: S119
        return codes[0] * second + codes[1]


def bucket_factors(count: int, size: int) -> tuple[int, int]:
    """Two even numbers, or 1, whose product is about count/size buckets."""
    wanted = -(-count // size)
    if wanted == 1:
        return 1, 1
    first = min(WIDEST, 2 * math.ceil(math.sqrt(wanted) / 2))
    return first, 1 if wanted <= first else min(WIDEST, 2 * math.ceil(wanted / first / 2))


def lsh_weights(attention: Attention, trunk: config.Trunk, given: tuple[int, ...]) -> LSHRotations:
    sizes = {} if attention.qkv is None else attention.qkv.sizes
    if "k" in sizes or attention.kv_heads != attention.heads:
        raise ConfigError(
            "attention.kernel 'lsh' has one vector for q and k; set attention.projections = ['q', 'v', 'out']"
        )
    size, rounds = kernel_numbers("lsh", given, SIZE, ROUNDS)
    return LSHRotations(size, rounds, attention.head_dim)


def unsupported_reason(spec: AttentionSpec) -> str:
    if spec.q is not spec.k:
        return "hashes queries and keys together: it has neither cross-attention nor a cache"
    packed = "hashes a row as one text: packed documents would share buckets"
    return "" if spec.q.document is None else packed


def lsh_cache_entry(attention: Attention, batch: int, capacity: int, like: Tensor) -> None:
    raise ConfigError("attention.kernel 'lsh' has no cache: its buckets are of whole sequences")


def lsh_flops(a: Attention, field: AttentionField) -> int:
    """FLOPs: every bucket has whole chunks, each with itself and the previous one."""
    assert isinstance(a.own, LSHRotations)
    size, sides = a.own.size, bucket_factors(field.queries, a.own.size)
    slots = (-(-field.queries // size) + math.prod(sides)) * size
    nearest = 2 * field.queries * a.head_dim * sum(many // 2 for many in sides)
    return len(a.own.w) * a.heads * (nearest + 2 * slots * 2 * size * (a.head_dim + a.value_head_dim))


KERNEL_COSTS["lsh"] = KernelCost(flops=lsh_flops, growth=("n·log n·d", 1.0))


@register_kernel(
    "lsh", exact=False, unsupported_reason=unsupported_reason, weights=lsh_weights, cache_entry=lsh_cache_entry
)
def lsh_attention(q: Tensor, k: Tensor, v: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    """LSH attention in several rounds; `k` is not read: a key is its query at unit length."""
    k, own, outs, sums = F.normalize(q, dim=-1), args.weights, [], []
    for turn in range(len(own.w)):
        out, total = attend_in_buckets(q, k, v, own.buckets(k.detach(), turn), plan.spec, args, own.size)
        outs.append(out)
        sums.append(total)
    share = torch.stack(sums).softmax(0) if len(sums) > 1 else torch.ones_like(sums[0])[None]
    return (torch.stack(outs) * share.to(v.dtype)).sum(0)


def attend_in_buckets(
    q: Tensor, k: Tensor, v: Tensor, bucket: Tensor, spec: AttentionSpec, args: AttentionArgs, size: int
) -> tuple[Tensor, Tensor]:
    """One round of LSH: the output of each query (B, H, N, e), and the logarithm of its softmax's sum (B, H, N, 1)."""
    many = math.prod(bucket_factors(q.shape[2], size))
    if spec.k.is_real is not None:  # padding has its own bucket, so that it takes no token's slot
        bucket, many = bucket.masked_fill(~spec.k.is_real[:, None], many), many + 1
    home, token = sort_into_buckets(bucket, size, many)  # (B, H, N), (B, H, C·S)
    here = token.clamp(min=0)
    qs, ks, vs = (gather_tokens(x, here).unflatten(2, (-1, size)) for x in (q, k, v))  # (B, H, C, S, d)
    s = apply_pair_bias(
        (qs * args.scale) @ with_previous_chunk(ks).mT, pair_bias(spec, args.bias, pair_indices(token, size), q.dtype)
    )
    s = s.to(accumulation_dtype(s)).masked_fill(
        ~same_bucket(token, bucket.gather(2, here), size), -math.inf
    )  # (B, H, C, S, T)
    s = torch.where((s > -math.inf) & self_pairs(size, s.device), SELF_SCORE, s)
    empty = s.detach().amax(-1, keepdim=True) == -math.inf
    s = s.masked_fill(empty, 0.0)
    total, weights = (
        s.logsumexp(-1, keepdim=True).masked_fill(empty, EMPTY_SCORE),
        s.softmax(-1).masked_fill(empty, 0.0),
    )
    made = F.dropout(weights.to(v.dtype), args.dropout) @ with_previous_chunk(vs)
    return gather_tokens(made.flatten(2, 3), home), gather_tokens(total.flatten(2, 3), home)


def sort_into_buckets(bucket: Tensor, size: int, many: int) -> tuple[Tensor, Tensor]:
    """The slot of each token, (…, N), and the token in each slot or -1: every bucket starts a new chunk."""
    count, number = bucket.shape[-1], torch.arange(bucket.shape[-1], device=bucket.device).expand_as(bucket)
    # keys are distinct, so that tokens keep their order within a bucket
    sorted_ = torch.empty_like(bucket).scatter(-1, (bucket * count + number).argsort(-1), number)
    held = bucket.new_zeros(*bucket.shape[:-1], many).scatter_add(-1, bucket, torch.ones_like(bucket))
    chunks = -(-held // size)
    begins = (chunks.cumsum(-1) - chunks) * size - (held.cumsum(-1) - held)  # unused slots of the chunks before
    home = sorted_ + begins.gather(-1, bucket)
    slots = (-(-count // size) + many) * size
    return home, bucket.new_full((*bucket.shape[:-1], slots), -1).scatter(-1, home, number)


def gather_tokens(x: Tensor, index: Tensor) -> Tensor:  # (B, H, N, d), (B, H, M) -> (B, H, M, d)
    return x.gather(2, index[..., None].expand(*index.shape, x.shape[-1]))


def with_previous_chunk(x: Tensor, nothing: int = 0) -> Tensor:
    """Each chunk after the previous one: (…, C, S, d) -> (…, C, 2S, d)."""
    return torch.cat([F.pad(x, (0, 0, 0, 0, 1, -1), value=nothing), x], -2)


def pair_indices(token: Tensor, size: int) -> tuple[Tensor, ...]:
    """The rows, heads, queries and keys of all pairs in the chunks, for mask and bias."""
    rows, heads = (torch.arange(n, device=token.device) for n in token.shape[:2])
    i, j = pair_tables(token.clamp(min=0), size)
    return rows.view(-1, 1, 1, 1, 1), heads.view(1, -1, 1, 1, 1), i, j


def pair_tables(table: Tensor, size: int, nothing: int = 0) -> tuple[Tensor, Tensor]:
    """A table (B, H, C·S) for queries, (B, H, C, S, 1), and for their keys, (B, H, C, 1, T)."""
    table = table.unflatten(2, (-1, size))[..., None]
    return table, with_previous_chunk(table, nothing).mT


def same_bucket(token: Tensor, bucket: Tensor, size: int) -> Tensor:
    """Whether keys are real and in the same bucket."""
    mine, theirs = pair_tables(bucket, size)
    return (pair_tables(token, size, -1)[1] >= 0) & (mine == theirs)


def self_pairs(size: int, device: torch.device) -> Tensor:
    """(S, T) where a query is its own key: in the second half, which is its own chunk."""
    return F.pad(torch.eye(size, dtype=torch.bool, device=device), (size, 0))
