"""Real compilation on the GPU: one graph where one is promised, equal results, and no sync with the host."""

import torch
import torch._dynamo

import regard
from cases import cases
from regard import config as C

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Counting:
    """The inductor backend, counting what it is given."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        from torch._inductor.compile_fx import compile_fx

        self.graphs += 1
        return compile_fx(graph, inputs)


def trunk(mask="full", **more):
    small = dict(dim=128, depth=3, attention=C.Attention(heads=4, kv_heads=2), dropout=C.NO_DROPOUT)
    return C.Trunk(**{**small, "mask": mask, **more})


SHAPES = {
    "encoder": lambda: C.Transformer(
        embed=C.TextEmbedding(vocab=97), trunk=trunk(norm_placement="post", position=C.LearnedPosition(length=2048))
    ),
    "decoder": lambda: C.Transformer(
        embed=C.TextEmbedding(vocab=97), trunk=trunk("causal", position=C.RotaryPosition())
    ),
    "decoder, banded": lambda: C.Transformer(
        embed=C.TextEmbedding(vocab=97), trunk=trunk(("causal", "causal & window(99)"), position=C.AlibiPosition())
    ),
    "encoder-decoder": lambda: C.Transformer(
        embed=C.TextEmbedding(vocab=97),
        trunk=trunk("causal", cross="last", position=C.T5Bias(bidirectional=False)),
        encoder=C.Encoder(trunk=trunk(position=C.T5Bias())),
    ),
}


def model(shape, **more):
    torch._dynamo.reset()
    return regard.Model(SHAPES[shape]()).to(DEVICE)


def batches(shape, count, N):
    for i in range(count):
        ids = torch.randint(97, (2, N), device=DEVICE)
        real = torch.arange(N, device=DEVICE)[None] < torch.randint(N // 2, N, (2, 1), device=DEVICE)
        if shape == "encoder-decoder":
            yield dict(ids=ids, source=ids.flip(1), real=real, source_real=real.flip(1))
        else:
            yield dict(ids=ids, real=real, document=torch.randint(0, 3 + i % 3, (2, N), device=DEVICE).sort(-1).values)


@cases(shape=list(SHAPES), N=[96, 1152])
def test_one_graph_serves_batches_of_different_padding_and_documents_in_training(shape, N):
    net, backend = model(shape), Counting()
    fast = torch.compile(net, backend=backend, fullgraph=True)
    for batch in batches(shape, 10, N):
        ids = batch.pop("ids")
        results = []
        for one in (fast, net):
            net.zero_grad()
            out = one(ids, **batch)[batch["real"]]
            out.float().square().mean().backward()
            results.append([out.detach(), *(p.grad.clone() for p in net.parameters())])
        for mine, meant in zip(*results, strict=True):
            assert (mine - meant).abs().max() <= 2e-4 * max(1, meant.abs().max().item())
    assert backend.graphs == 1


@cases(shape=["decoder", "encoder-decoder"])
def test_one_graph_serves_every_decode_step(shape):
    net, backend = model(shape).eval(), Counting()
    fast = torch.compile(net, backend=backend, fullgraph=True)
    ids = torch.randint(97, (2, 73), device=DEVICE)
    more = dict(source=ids.flip(1)) if shape == "encoder-decoder" else {}
    with torch.no_grad():
        cache = net.cache(2, 128)
        steps = [fast(ids[:, :9], cache=cache, **more)] + [fast(ids[:, i : i + 1], cache=cache) for i in range(9, 73)]
        whole = net(ids, **more)
    assert (torch.cat(steps, 1) - whole).abs().max() <= 2e-4
    assert backend.graphs == 2  # the prompt, and all the steps


def test_a_decode_step_replays_as_one_cuda_graph():
    net = model("decoder").eval()
    ids = torch.randint(97, (2, 41), device=DEVICE)
    with torch.no_grad():
        cache = net.cache(2, 64)
        net(ids[:, :9], cache=cache)
        token = ids[:, 9:10].clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                net(token, cache=cache)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = net(token, cache=cache)
        cache.truncate(9)
        steps = []
        for i in range(9, 41):
            token.copy_(ids[:, i : i + 1])
            graph.replay()
            steps.append(out.clone())
        whole = net(ids)[:, 9:]
    assert (torch.cat(steps, 1) - whole).abs().max() <= 2e-4


@cases(shape=list(SHAPES))
def test_nothing_in_forward_waits_for_the_gpu(shape):
    net = model(shape)
    given = list(batches(shape, 2, 96))
    net(**given[0])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        net(**given[1]).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_nothing_in_decoding_waits_for_the_gpu():
    net = model("decoder").eval()
    ids = torch.randint(97, (2, 12), device=DEVICE)
    with torch.no_grad():
        cache = net.cache(2, 64)
        net(ids, cache=cache)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for i in range(12):
                net(ids[:, i : i + 1], cache=cache)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_looking_at_a_compiled_model_that_has_already_run_records_and_edits():
    net = model("decoder").eval()
    fast = torch.compile(net, fullgraph=True)
    ids = torch.randint(97, (2, 48), device=DEVICE)
    with torch.no_grad():
        before = fast(ids)
        with regard.looking(fast, "trunk.1.attn.pattern", heads=[1]) as seen:
            watched = fast(ids)
        with regard.looking(fast, "trunk.1.attn.result", edit=lambda name, t: 0 * t):
            edited, meant = fast(ids), net(ids)
    assert (seen["trunk.1.attn.pattern"].sum(-1) - 1).abs().max() <= 1e-5
    assert (watched - before).abs().max() <= 1e-4
    assert (edited - meant).abs().max() <= 1e-4
    assert (edited - before).abs().max() > 1e-3
