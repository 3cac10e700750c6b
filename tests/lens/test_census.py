"""A census of heads: a stream is one pass over everything, planted heads get what they were planted for."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from lens.planted_circuit import HEADS as PLANTED_HEADS
from lens.planted_circuit import JUNK, LENGTH, PLACE, PREVIOUS, SHARP, TOKEN, planted_model, set_head
from lens.small_models import HEADS, SHAPES, VOCAB, text

import regard
from regard import config as C
from regard import lens
from regard.config.errors import ConfigError, DataError, RunError
from regard.hub.weights import save_tensors
from regard.inference.load import load_model
from regard.inference.model import Model
from regard.lens.attention_maps import AttentionView, TrunkInput
from regard.lens.head_census import pattern_stream, run_census
from regard.lens.head_census.head_sums import HeadSums, measure_patterns
from regard.lens.head_census.pair_tables import METRICS, TEXT_ROLES, pair_tables
from regard.lens.head_census.pattern_stream import run_batch
from regard.text import train_tokenizer

WINDOW = 13
WALKED = [name for name in SHAPES if name != "towers"]
ROLES = [role.name for role in TEXT_ROLES]


def decoder():
    torch.manual_seed(0)
    model = text(mask="causal", position=C.LearnedPosition(length=WINDOW), norm=C.Norm(gain=False))().double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.4)
    return model


def corpus(rows=9, width=WINDOW):
    return torch.randint(VOCAB, (rows * width,), generator=torch.Generator().manual_seed(1))


def all_patterns(model, ids, where):
    """(windows, H, N, N) in one pass, as the model recorded them."""
    with torch.no_grad(), regard.looking(model, f"{where}.pattern") as seen:
        model(ids.view(-1, WINDOW))
    return seen[f"{where}.pattern"].numpy()


def by_hand(p):
    """The metrics of one head over all windows (R, N, N) of a causal decoder, in plain numpy."""
    R, N, _ = p.shape
    i, j = np.mgrid[:N, :N]
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(p * np.log2(p), -1)
    most = np.log2(np.arange(1, N + 1))
    received = np.where(i == j, 0, p)[:, 1:].sum(1)  # by query rows that see more than one
    seen = (j <= i) & (i > 0)
    cells = p[:, seen]  # (R, pairs)
    within = ((cells - cells.mean(0)) ** 2).sum() / (cells.size - cells.shape[1])
    return {
        "entropy": entropy.mean(),
        "relative": (entropy[:, 1:] / most[1:]).mean(),
        "distance": (p * (i - j)).sum(-1).mean(),
        "sink": (received.max(1) / (N - 1)).mean(),
        "previous": p[:, i - j == 1].mean(),
        "itself": p[:, np.arange(1, N), np.arange(1, N)].mean(),
        "first": p[:, 1:, 0].mean(),
        "positional": 1 - within / cells.var(ddof=1),
    }


# ---------------------------------------------------------------- a stream is one pass over everything


def test_a_stream_is_one_pass_over_everything():
    model, ids = decoder(), corpus()
    found = lens.census(model, ids, batch_tokens=2 * WINDOW)

    for where in ("trunk.0.attn", "trunk.1.attn"):
        patterns = all_patterns(model, ids, where)
        for head in range(HEADS):
            direct = by_hand(patterns[:, head])
            streamed = {name: float(found.metric(name)[found.row(where, head)]) for name in direct}
            assert streamed == pytest.approx(direct, rel=1e-12, abs=1e-13)
    assert found.state.tokens == len(ids) and found.state.sequences == 9


@pytest.mark.parametrize("name", WALKED)
def test_one_batch_of_any_shape_is_what_a_summary_of_its_heads_says(name):
    shape = SHAPES[name]
    model, (first,) = shape.model(), shape.reads()
    found = lens.census(model, [lens.Prompt(first, (), shape.named)])
    summaries = lens.summarize_heads(model, first, **shape.named)

    assert found.heads == [(head.where, head.head) for head in summaries]
    for row, head in enumerate(summaries):
        wanted = {"entropy": head.entropy, "relative": head.relative}
        wanted |= {"distance": head.distance} if head.distance is not None else {}
        wanted |= {role: score.value for role, score in head.scores.items() if role != "induction"}
        known = [each for each in (*ROLES, "entropy", "relative", "distance") if not found.metric(each)[row].isnan()]
        assert set(known) == set(wanted)
        assert {each: float(found.metric(each)[row]) for each in known} == pytest.approx(wanted, abs=1e-5)


def test_heads_that_are_read_in_groups_are_those_that_are_read_together(monkeypatch):
    model, ids = decoder(), corpus()
    together = lens.census(model, ids)
    monkeypatch.setitem(pattern_stream.PATTERN_BYTES, "cpu", 9 * WINDOW * WINDOW * 8)  # one head at a time
    alone = lens.census(model, ids)

    for name in ("entropy", "distance", "sink", "same", "positional"):
        assert torch.allclose(together.metric(name), alone.metric(name), rtol=1e-12)
    assert together.top("trunk.1.attn", 2, "first") == alone.top("trunk.1.attn", 2, "first")


def test_a_model_says_the_same_while_its_heads_are_counted():
    model, ids = decoder(), corpus().view(9, WINDOW)
    with torch.no_grad():
        quiet = model(ids)
        outs = []
        model.register_forward_hook(lambda module, args, out: outs.append(out))
        lens.census(model, [lens.Prompt(ids, ())])

    assert torch.equal(outs[-1], quiet)


def test_a_table_of_ids_is_read_in_as_many_batches_as_it_takes():
    model, ids = decoder(), corpus().view(9, WINDOW)
    parts, whole = lens.census(model, ids, batch_tokens=4 * WINDOW), lens.census(model, ids)

    assert parts.state.rows == 3 and whole.state.rows == 1
    assert torch.allclose(parts.metric("entropy"), whole.metric("entropy"), rtol=1e-12)
    assert [each.text for each in parts.top("trunk.0.attn", 1, "first")] == [
        each.text for each in whole.top("trunk.0.attn", 1, "first")
    ]


def test_many_images_are_read_in_batches():
    shape = SHAPES["vit"]
    found = lens.census(shape.model(), torch.randn(37, 3, 6, 6))

    assert found.state.rows == 3 and found.state.sequences == 37 and found.state.tokens == 370
    assert found.top("trunk.1.attn", 0, "entropy")[0].ids == ()


def test_patterns_of_a_model_in_bf16_are_as_exact_as_its_q_and_k():
    model = text(mask="causal", position=C.LearnedPosition(length=WINDOW))().bfloat16().eval()
    mixed = Model(replace(decoder().c, precision="mixed"))
    seen = []
    for each in (model, mixed):
        run_batch(each, lens.Prompt(corpus().view(9, WINDOW), ()), lambda *given: seen.append(given[2]), TEXT_ROLES)

    assert len(seen) == 4 and all(pattern.dtype == torch.float64 for pattern in seen)
    assert all(torch.allclose(pattern.sum(-1), torch.ones(()).double(), atol=1e-6) for pattern in seen)


def test_top_sequences_are_those_of_sorting_everything():
    model, ids = decoder(), corpus()
    found = lens.census(model, ids, top_k=4, batch_tokens=2 * WINDOW)
    patterns = all_patterns(model, ids, "trunk.1.attn")[:, 2]
    scores = torch.tensor(patterns[:, 1:, 0].mean(1))
    top = found.top("trunk.1.attn", 2, "first")

    assert [each.start // WINDOW for each in top] == scores.topk(4).indices.tolist()
    assert [each.score for each in top] == pytest.approx(scores.topk(4).values.tolist(), rel=1e-6)
    assert top[0].ids == tuple(ids[top[0].start : top[0].start + WINDOW].tolist())


def test_a_sequence_of_few_words_tops_no_list():
    found = lens.census(decoder(), torch.arange(2 * WINDOW + 3) % VOCAB)

    assert found.state.sequences == 3 and len(found.top("trunk.0.attn", 0, "previous")) == 2


# ---------------------------------------------------------------- planted heads


def planted_view(rows, positions):
    order = torch.arange(positions).expand(rows, -1)
    read = TrunkInput(order, torch.ones(rows, positions).bool(), order[..., None].float(), torch.zeros_like(order))
    visible = torch.ones(positions, positions).tril().bool().expand(rows, -1, -1)
    return AttentionView("trunk.0.attn", torch.empty(0), visible, read, read, causal=True)


def onto(places):
    return torch.eye(len(places), dtype=torch.float64)[places]


def test_a_head_gets_one_for_what_it_always_does():
    N = torch.arange(11)
    planted = torch.stack([onto((N - 1).clamp(min=0)), onto(N), onto(0 * N)]).expand(5, -1, -1, -1)
    tables = pair_tables(planted_view(5, 11), TEXT_ROLES)
    sums = HeadSums(3)
    sums.add(measure_patterns(planted, tables), slice(0, 3))
    sums.add_positions(planted, tables, slice(0, 3))
    share = {name: sums.means()[:, METRICS.index(name)].tolist() for name in METRICS}

    assert share["previous"][0] == share["itself"][1] == share["first"][2] == share["sink"][2] == 1
    assert share["itself"][2] == 0 and share["sink"][0] == 0.1 and share["entropy"] == [0, 0, 0]
    assert sums.positional().tolist() == [1, 1, 1]


def test_the_positional_share_is_zero_for_a_head_that_looks_at_content_alone_and_half_for_a_mixture():
    R, N = 400, 12
    i = torch.arange(N)
    anywhere = (torch.rand(R, N, generator=torch.Generator().manual_seed(0)) * (i + 1)).long()
    content = torch.eye(N, dtype=torch.float64)[anywhere]  # (R, N, N)
    view = planted_view(R, N)
    alike = (view.visible / view.visible.sum(-1, keepdim=True)).double()
    patterns = torch.stack([content, alike, (content + onto((i - 1).clamp(min=0))) / 2], 1)
    tables, sums = pair_tables(view, TEXT_ROLES), HeadSums(3)
    sums.add_positions(patterns, tables, slice(0, 3))
    found = sums.positional().tolist()

    assert found[0] < 0.1 and found[1] == 1 and 0.3 < found[2] < 0.7


def test_the_heads_of_a_planted_induction_circuit_are_told_by_their_numbers():
    model = planted_model()
    own = torch.zeros(LENGTH, LENGTH)
    own[0] = SHARP  # every place asks for place 0
    with torch.no_grad():
        set_head(model, 0, 2, q=(PLACE, own), k=(PLACE, torch.eye(LENGTH)), value=(TOKEN, torch.eye(11)), to=JUNK,
                 width=4)  # fmt: skip
    found = lens.census(model, torch.randint(11, (40, LENGTH)), circuits=False)  # its norms are none
    value = {name: found.metric(name).view(2, PLANTED_HEADS) for name in ("previous", "first", "prefix_matching")}

    assert value["previous"][PREVIOUS] > 0.999 and value["first"][0, 2] > 0.999
    # token 0 has none before it, so that its own place counts as after a copy too: half of one query in four goes there
    assert value["prefix_matching"][1, 2] == pytest.approx(7 / 8, abs=1e-3)
    assert value["prefix_matching"].argmax() == PLANTED_HEADS + 2
    assert float(found.metric("positional").view(2, PLANTED_HEADS)[PREVIOUS]) > 0.999


def test_prefix_matching_is_for_decoders_alone():
    encoder, translator = (SHAPES[name] for name in ("encoder", "translator"))

    def prefix(shape):
        return lens.census(shape.model(), [lens.Prompt(*shape.reads(), (), shape.named)]).metric("prefix_matching")

    found = prefix(translator).view(-1, HEADS)
    assert prefix(encoder).isnan().all()
    assert [bool(row.isnan().any()) for row in found] == ["trunk" not in where or "cross" in where
                                                         for where in translator.places]  # fmt: skip


# ---------------------------------------------------------------- results, and what is refused


def test_a_census_is_a_table_and_a_picture():
    found = lens.census(decoder(), corpus())
    columns = found.table().columns

    assert columns[:3] == ("head", "entropy", "distance")
    assert "prefix matching" in columns and "delimiter" not in columns
    assert len(found.table().rows) == 2 * HEADS and "<table>" in found._repr_html_()
    assert found.picture().values.shape == (2 * HEADS, len(columns) - 3) and columns[-1] == "copying"


@pytest.mark.parametrize(
    "kind, sentence, given",
    [
        (ConfigError, "^tokens: 0 are too few", {"tokens": 0}),
        (ConfigError, "^top_k: 0; keep", {"top_k": 0}),
        (ConfigError, "^batch_tokens: -1 are too few", {"batch_tokens": -1}),
        (ConfigError, "^batch_tokens: 9,999 are more than fit into memory at once; give 2,048", {"batch_tokens": 9999}),
        (ConfigError, "^window: 0 tokens are too few", {"context": 0}),
        (DataError, "^texts: there are none", {"texts": []}),
    ],
)
def test_what_cannot_be_counted_is_refused_in_a_sentence(kind, sentence, given):
    with pytest.raises(kind, match=sentence):
        lens.census(decoder(), **({"texts": corpus()} | given))


def test_models_without_one_input_or_without_patterns_are_refused():
    towers, linear = SHAPES["towers"].model(), text(mask="causal", attention=C.Attention(heads=3, kernel="linear"))()
    for model, sentence in [(towers, "two towers, each with an input of its own"), (linear, "no table")]:
        with pytest.raises(ConfigError, match=sentence):
            lens.census(model, corpus())


def test_a_damaged_model_is_a_sentence():
    model = decoder()
    with torch.no_grad():
        model.embed.tokens.weight[3] = torch.nan

    with pytest.raises(RunError, match="^trunk.0.attn: attention weights are not finite; the model's weights"):
        lens.census(model, corpus())


def test_a_window_whose_pattern_is_too_large_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setitem(pattern_stream.PATTERN_BYTES, "cpu", 8 * 100)

    with pytest.raises(ConfigError, match="^context: the pattern of one head over 13 tokens .* give 10 tokens"):
        lens.census(decoder(), corpus())
    assert lens.census(decoder(), corpus(), context=10).state.tokens == 9 * WINDOW


def test_a_census_ends_with_the_sequence_that_reaches_the_number_of_tokens():
    assert lens.census(decoder(), corpus(), tokens=WINDOW + 1).state.tokens == 2 * WINDOW
    assert lens.census(decoder(), corpus(), tokens=2 * WINDOW).state.tokens == 2 * WINDOW


# ---------------------------------------------------------------- the folder, and what is resumed


FILES = ("census.json", "census.safetensors", "sequences.json", "circuits.json", "circuits.safetensors")


def files_of(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture
def often(monkeypatch):
    """Save after every batch."""
    monkeypatch.setattr(run_census, "SAVE_SECONDS", 0.0)


def stop_after(batches):
    """A progress that breaks off, as Ctrl-C would, in the batch after so many."""
    calls = []

    def progress(done, total):
        calls.append(done)
        if len(calls) > batches:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_a_census_that_was_interrupted_is_resumed_to_the_same_bits(tmp_path, often, batches):
    model, ids, settings = decoder(), corpus(), {"batch_tokens": 2 * WINDOW, "top_k": 2}
    lens.census(model, ids, out=tmp_path / "one", **settings)
    with pytest.raises(KeyboardInterrupt):
        lens.census(model, ids, out=tmp_path / "two", **settings, progress=stop_after(batches))
    before = lens.Census.load(tmp_path / "two").state.tokens if batches else 0
    lens.census(model, ids, out=tmp_path / "two", **settings)

    assert before == 2 * WINDOW * batches
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_a_batch_that_was_broken_off_half_way_counts_once(tmp_path, often, monkeypatch):
    model, ids, settings = decoder(), corpus(), {"batch_tokens": 2 * WINDOW}
    lens.census(model, ids, out=tmp_path / "one", **settings)
    whole, calls = HeadSums.add_positions, []

    def fail(self, *args):
        calls.append(args)
        if len(calls) == 6:  # in the third batch, after the first of two layers
            raise KeyboardInterrupt
        whole(self, *args)

    monkeypatch.setattr(HeadSums, "add_positions", fail)
    with pytest.raises(KeyboardInterrupt):
        lens.census(model, ids, out=tmp_path / "two", **settings)
    lens.census(model, ids, out=tmp_path / "two", **settings)

    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_a_folder_is_what_the_census_was(tmp_path):
    found = lens.census(decoder(), corpus(), out=tmp_path / "census", top_k=3, name="small")
    read = lens.Census.load(tmp_path / "census")
    told = json.loads((tmp_path / "census" / "census.json").read_text())

    assert str(read) == str(found) and read.model == found.model and read.model["name"] == "small"
    assert read.top("trunk.1.attn", 1, "sink") == found.top("trunk.1.attn", 1, "sink")
    assert [head["first"] for head in told["heads"]] == found.metric("first").tolist()
    assert told["tokens"] == len(corpus()) and told["heads"][0]["delimiter"] is None


def test_the_sequences_of_a_folder_are_the_text(tmp_path):
    ids = corpus()
    found = lens.census(decoder(), ids, out=tmp_path / "census", top_k=3)
    told = json.loads((tmp_path / "census" / "sequences.json").read_text())
    for head in told["heads"]:
        top = found.top(head["where"], head["head"], "previous")
        assert [score for _, score in head["previous"]] == [each.score for each in top]
    for sequence in told["sequences"].values():
        assert sequence["ids"] == ids[sequence["start"] :][:WINDOW].tolist()


def test_more_tokens_go_on_where_a_census_ended(tmp_path):
    model, ids = decoder(), corpus()
    lens.census(model, ids, out=tmp_path / "census", tokens=3 * WINDOW)
    longer, whole = lens.census(model, ids, out=tmp_path / "census"), lens.census(model, ids)

    assert longer.state.tokens == whole.state.tokens == len(ids)
    for name in ("entropy", "sink", "positional", "prefix_matching"):
        assert torch.allclose(longer.metric(name), whole.metric(name), rtol=1e-12)


def test_a_folder_of_another_census_is_refused_in_a_sentence(tmp_path):
    model, ids, out = decoder(), corpus(), tmp_path / "census"
    lens.census(model, ids, out=out, top_k=3)
    before = files_of(out)
    other = decoder()
    with torch.no_grad():
        other.embed.tokens.weight[0, 0] += 1
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "notes.txt").write_text("mine")
    for sentence, given in [("holds the census of another model", {"model": other}),
                            ("holds the census of another text", {"texts": ids.flip(0)}),
                            ("holds the census of another text", {"texts": ids[: 2 * WINDOW]}),
                            ("^top_k: the census in .* has 3, and 4 was given", {"top_k": 4}),
                            ("^context: the census in .* has 13, and 7 was given", {"context": 7}),
                            ("there are other files in it .notes.txt.", {"out": tmp_path / "else"})]:  # fmt: skip
        with pytest.raises(ConfigError, match=sentence):
            lens.census(**({"model": model, "texts": ids, "out": out, "top_k": 3} | given))
    assert files_of(out) == before


@pytest.mark.parametrize("damage", [b"", b"not a census", None])
def test_a_damaged_or_missing_census_is_a_sentence(tmp_path, damage):
    out = tmp_path / "census"
    lens.census(decoder(), corpus(), out=out)
    if damage is None:
        (out / "census.safetensors").unlink()
    else:
        (out / "census.safetensors").write_bytes(damage)

    with pytest.raises(DataError, match="no census.safetensors in it|not whole safetensors"):
        lens.Census.load(out)


def test_another_file_of_tensors_is_no_census(tmp_path):
    save_tensors(tmp_path / "census.safetensors", {"x": torch.zeros(3)})

    with pytest.raises(DataError, match="not a census; expected a file that `regard lens census` wrote"):
        lens.Census.load(tmp_path)


KILLED = """
import sys, torch
from pathlib import Path
from regard import lens
from regard.inference.load import load_model
from regard.inference.model import Model
from regard.lens.head_census import run_census
run_census.SAVE_SECONDS = 0.0
def progress(done, total):
    print(done, flush=True)
    if done > {after}:
        sys.stdin.read()  # wait to be killed
lens.census(load_model({model!r}), Path({text!r}), out={out!r}, context=16, batch_tokens=64, progress=progress)
"""


@pytest.mark.slow(seconds=6)
def test_a_census_whose_process_was_killed_is_resumed_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    words = "the cat sat on the mat, and the dog did not.\n" * 30
    model = regard.build(regard.preset("gpt2", dim=12, depth=2, heads=3, vocab=18, position={"length": 16}))
    model.tokenizer, model.context = train_tokenizer(C.CharTokenizer(byte_fallback=False), [words]), 16
    model.save(tmp_path / "model")
    (tmp_path / "text.txt").write_text(words)
    out = tmp_path / "killed"
    script = KILLED.format(after=500, model=str(tmp_path / "model"), text=str(tmp_path / "text.txt"), out=str(out))
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        while int(process.stdout.readline()) <= 500:
            pass
        process.kill()  # SIGKILL
    part = lens.Census.load(out).state.tokens
    settings = {"context": 16, "batch_tokens": 64}
    for folder in ("killed", "whole"):
        lens.census(load_model(str(tmp_path / "model")), tmp_path / "text.txt", out=tmp_path / folder, **settings)

    assert 0 < part < len(words) and files_of(out) == files_of(tmp_path / "whole")


def test_a_folder_that_is_being_written_is_refused(tmp_path):
    def progress(done, total):
        with pytest.raises(ConfigError, match="another process is taking a census there"):
            lens.census(decoder(), corpus(), out=tmp_path / "census")

    lens.census(decoder(), corpus(), out=tmp_path / "census", progress=progress)
