"""Published models of images are shown pictures as `transformers` shows them, and tell what they see by its names."""

import gzip
import json
import math
from dataclasses import replace

import pytest
import torch
import transformers as hf
from hub import image_cases
from hub.published import pair, stored
from hub.wheels import wheel
from parity import images
from parity.tolerance import OUTPUT, assert_near
from PIL import Image
from safetensors.torch import save_file

import regard
from regard import config as C
from regard.cli.app import run_command
from regard.data.records import Record
from regard.hub.families.canonical import canonicalize
from regard.hub.families.registry import FAMILIES, match_family, parse_hf_config
from regard.hub.image_preprocessor import PREPROCESSOR_FILE
from regard.inputs.image import normalize_image
from regard.inputs.processors import build_processor
from regard.text.token_bytes import byte_to_letter

OPEN_CLIP = "c549ad5ed6bfc119cc11105033c0a2b9d7a2a4afeb40a58a09aab3da1a0043ce"
IMAGENET = dict(image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225])


def square(side):
    return dict(height=side, width=side)


def photo(rows, columns):
    """Soft waves and some noise, up to black and white."""
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    waves = torch.stack([(x / 5 + y / 9).sin(), (x / 7 - y / 4).cos(), ((x * 3 + y * 5) % 256) / 128 - 1], -1)
    bytes_of = (127 + 120 * waves + 8 * torch.randn(waves.shape)).clamp(0, 255).to(torch.uint8)
    return Image.frombytes("RGB", (columns, rows), bytes(bytes_of.flatten().tolist()))


def shown(model, image):
    """The numbers that a model of ours sees in an image."""
    front = (model.c.towers[0] if isinstance(model.c, C.DualEncoder) else model.c).embed
    reader = build_processor(front)
    ids = reader.collate([reader.example(Record({"image": image}, "photo"), "image")], None)["ids"]
    return ids.flatten(1) if isinstance(front, C.PixelEmbedding) else normalize_image(reader.look, ids)


PROCESSORS = {
    "vit": (image_cases.vit, hf.ViTImageProcessorPil(size=square(24))),
    "vit bicubic": (image_cases.vit, hf.ViTImageProcessorPil(size=square(24), resample=3, **IMAGENET)),
    "vit not normed": (image_cases.vit, hf.ViTImageProcessorPil(size=square(24), do_normalize=False)),
    "deit": (image_cases.deit, hf.DeiTImageProcessorPil(size=square(28), crop_size=square(24))),
    "clip": (image_cases.clip, hf.CLIPImageProcessorPil(size=dict(shortest_edge=24), crop_size=square(24))),
    "clip of a larger one": (image_cases.seer, hf.CLIPImageProcessorPil(size=dict(shortest_edge=31),
                                                                       crop_size=square(24))),
    "swin": (image_cases.swin, hf.ViTImageProcessorPil(size=square(48), rescale_factor=1 / 127.5)),
}  # fmt: skip


@pytest.fixture
def published(tmp_path):
    """A folder with a model of theirs and the way in which it sees, opened here."""

    def made(name):
        make, processor = PROCESSORS[name]
        make().save_pretrained(tmp_path / "theirs")
        processor.save_pretrained(tmp_path / "theirs")
        return regard.load(tmp_path / "theirs", device="cpu"), processor

    return made


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_picture_of_the_right_size_is_seen_in_the_very_same_numbers(name, published):
    ours, processor = published(name)
    image = photo(*[processor.crop_size.height if processor.do_center_crop else processor.size.height] * 2)
    want = processor(image, return_tensors="pt")["pixel_values"]
    resized = name in ("deit", "clip of a larger one")  # also those are made larger, then cut

    assert_near(shown(ours, image), want, within(ours, 1) if resized else 1e-6)


@pytest.mark.parametrize("rows, columns", [(50, 70), (100, 100), (17, 19), (71, 60)])
@pytest.mark.parametrize("name", PROCESSORS)
def test_other_pictures_are_made_as_large_to_one_byte(name, rows, columns, published):
    """Where pillow goes over the columns first, which it does with some upright images, bicubic ones differ by more."""
    ours, processor = published(name)
    image = photo(rows, columns)
    apart = shown(ours, image) - processor(image, return_tensors="pt")["pixel_values"]

    assert apart.abs().max() <= within(ours, 1)


def within(model, count):
    """So many bytes in the numbers that a model sees."""
    front = (model.c.towers[0] if isinstance(model.c, C.DualEncoder) else model.c).embed
    return count / 255 / min(getattr(front, "patches", front).std) + 1e-6


@pytest.mark.parametrize("name", PROCESSORS)
def test_saved_from_our_own_words_transformers_sees_the_same(name, published, tmp_path):
    ours, processor = published(name)
    ours.source_folder = None
    ours.save(tmp_path / "ours")
    again, image = hf.AutoImageProcessor.from_pretrained(tmp_path / "ours", backend="pil"), photo(50, 70)

    assert_near(torch.as_tensor(again(image, return_tensors="pt")["pixel_values"]),
                processor(image, return_tensors="pt")["pixel_values"], 1e-6)  # fmt: skip
    assert regard.load(tmp_path / "ours", device="cpu").c == ours.c


def test_our_own_way_to_cut_comes_back_though_theirs_have_no_word_for_it(tmp_path):
    c = regard.preset("vit-b16", trunk=dict(depth=1, dim=24, attention=dict(heads=3)))
    c = replace(
        c, embed=replace(c.embed, resize=C.ImageResize()), trunk=replace(c.trunk, mlp=replace(c.trunk.mlp, hidden=9))
    )
    regard.build(c).save(tmp_path / "ours")
    said = json.loads((tmp_path / "ours" / PREPROCESSOR_FILE).read_text())

    assert said["size"] == {"shortest_edge": 224} and said["crop_size"] == square(224)
    assert regard.load(tmp_path / "ours", device="cpu").c == c


OLD = {
    "vit": (image_cases.vit, {"feature_extractor_type": "ViTFeatureExtractor", "size": 24, "resample": 2,
                             "image_mean": [0.5, 0.5, 0.5], "image_std": 0.25}, C.ImageResize(mode="stretch")),
    "deit": (image_cases.deit, {"feature_extractor_type": "DeiTFeatureExtractor", "size": 27, "crop_size": 24,
                               "do_center_crop": True, "resample": 3, "image_std": [0.25]},
             C.ImageResize(mode="stretch", size_before_crop=27, resample="bicubic")),
    "clip": (image_cases.seer, {"feature_extractor_type": "CLIPFeatureExtractor", "size": 24, "crop_size": 24,
                               "do_center_crop": True, "resample": 3, "image_std": [0.25] * 3},
             C.ImageResize(mode="shortest_edge", resample="bicubic")),
}  # fmt: skip


@pytest.mark.parametrize("name", OLD)
def test_files_of_early_versions_are_understood(name, tmp_path):
    make, said, resize = OLD[name]
    make().save_pretrained(tmp_path)
    (tmp_path / PREPROCESSOR_FILE).write_text(json.dumps(said))
    front = regard.load(tmp_path, device="cpu").c.embed

    assert front.resize == resize and set(front.std) == {0.25}


WRONG = [
    ({"image_mean": [0.5, 0.5]}, ("mean", "[0.5, 0.5]", "3 channels")),
    ({"image_std": [0.5, 0.0, 0.5]}, ("std", "zero")),
    ({"image_mean": "grey"}, ("image_mean", "grey", "number")),
    ({"size": "large"}, ("size", "large", "height")),
    ({"size": {"height": 0, "width": 3}}, ("height", "0")),
    ({"image_mean": [0.5, float("nan"), 0.5]}, ("image_mean", "NaN")),
    ({"rescale_factor": -1.0}, ("rescale_factor", "-1.0")),
    ({"do_normalize": "yes"}, ("do_normalize", "yes", "true or false")),
]


@pytest.mark.parametrize("said, words", WRONG)
def test_a_way_of_seeing_that_is_none_is_one_sentence(said, words, tmp_path):
    image_cases.vit().save_pretrained(tmp_path)
    (tmp_path / PREPROCESSOR_FILE).write_text(json.dumps(said))
    with pytest.raises(C.DataError) as error:
        regard.load(tmp_path, device="cpu")

    assert "\n" not in str(error.value) and all(word in str(error.value) for word in (PREPROCESSOR_FILE, *words))


def test_a_way_to_resize_that_is_not_known_is_told_of(tmp_path):
    image_cases.vit().save_pretrained(tmp_path)
    (tmp_path / PREPROCESSOR_FILE).write_text(json.dumps({"resample": 1}))
    with pytest.warns(UserWarning, match="resample is 1"):
        regard.load(tmp_path, device="cpu")


# ---------------------------------------------------------------- which class is it?


@pytest.mark.parametrize("case", ["vit", "deit", "swin"])
def test_classify_tells_the_names_of_a_published_folder(case, tmp_path, capsys):
    names = dict(enumerate(["crane", "dog", "crane", "cat", "bus", "owl", "a, b"]))
    make, processor = PROCESSORS[case]
    theirs = make(id2label=names, label2id={name: place for place, name in names.items()}).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    processor.save_pretrained(tmp_path / "theirs")
    image = photo(50, 70)
    image.save(tmp_path / "a.png")
    capsys.readouterr()

    assert run_command(["classify", str(tmp_path / "theirs"), str(tmp_path / "a.png"), "--top-k", "7", "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)["answers"]
    want = theirs(**processor(image, return_tensors="pt")).logits.softmax(-1)[0].tolist()
    assert told["classes"].keys() == {"crane (0)", "dog", "crane (2)", "cat", "bus", "owl", "a, b"}
    for place, name in names.items():
        assert math.isclose(told["classes"][f"crane ({place})" if name == "crane" else name], want[place], abs_tol=1e-3)


# ---------------------------------------------------------------- pixels


@pytest.mark.spec("S060")
def test_a_palette_is_read_from_the_clusters_and_pixels_are_told_in_it(tmp_path):
    image_cases.imagegpt(n_positions=17 * 4).save_pretrained(tmp_path / "theirs")
    clusters = 2 * torch.rand(image_cases.V - 1, 3) - 1
    processor = hf.ImageGPTImageProcessorPil(clusters=clusters.numpy(), size=dict(height=17, width=4))
    processor.save_pretrained(tmp_path / "theirs")
    ours, image = regard.load(tmp_path / "theirs", device="cpu"), photo(17, 4)
    want = torch.as_tensor(processor(image, return_tensors="pt")["input_ids"])

    assert ours.c.embed.grid == (17, 4) and torch.equal(shown(ours, image), want)
    ours.source_folder = None
    ours.save(tmp_path / "ours")
    assert regard.load(tmp_path / "ours", device="cpu").c == ours.c
    again = hf.AutoImageProcessor.from_pretrained(tmp_path / "ours", backend="pil")
    assert torch.equal(torch.as_tensor(again(image, return_tensors="pt")["input_ids"]), want)


def test_a_published_model_of_pixels_draws(tmp_path):
    from regard.inference.images import sample_images

    image_cases.imagegpt(n_positions=20).save_pretrained(tmp_path)
    clusters = torch.rand(image_cases.V - 1, 3).numpy()
    hf.ImageGPTImageProcessorPil(clusters=clusters, size=dict(height=4, width=5)).save_pretrained(tmp_path)

    assert sample_images(regard.load(tmp_path, device="cpu"), 2, seed=0).shape == (2, 3, 4, 5)


def test_clusters_that_are_no_palette_are_refused(tmp_path):
    image_cases.imagegpt().save_pretrained(tmp_path)
    for clusters, word in ([[0.0, 1.0]], "3 numbers"), ([[0.0, 1.0, 0.5]], "palette has 52"):
        (tmp_path / PREPROCESSOR_FILE).write_text(json.dumps({"clusters": clusters}))
        with pytest.raises(C.DataError, match=word):
            regard.load(tmp_path, device="cpu")


# ---------------------------------------------------------------- CLIP


def tokenizer():
    """CLIP's own: 256 letters, each once more where it ends a word, and what they were merged to."""
    with wheel("open_clip_torch", "3.3.0", OPEN_CLIP) as inside:
        told = gzip.decompress(inside.read("open_clip/bpe_simple_vocab_16e6.txt.gz")).decode().split("\n")
    merges = [tuple(line.split()) for line in told[1 : 49_152 - 256 - 2 + 1]]
    alphabet = list(byte_to_letter())
    words = [*alphabet, *(f"{letter}</w>" for letter in alphabet), *map("".join, merges)]
    vocabulary = [*words, "<|startoftext|>", "<|endoftext|>"]
    return hf.CLIPTokenizer(vocab={word: place for place, word in enumerate(vocabulary)}, merges=merges)


@pytest.mark.slow
@pytest.mark.spec("S062")
@pytest.mark.parametrize("end", [2, 49_407], ids=["the highest id", "the end token"])
def test_pictures_match_texts_as_they_do_there(end, tmp_path):
    words, processor = tokenizer(), PROCESSORS["clip"][1]
    reads = dict(vocab_size=49_408, bos_token_id=49_406, eos_token_id=end, max_position_embeddings=77)
    theirs = image_cases.clip(reads).eval()
    for each in (theirs, words, processor):
        each.save_pretrained(tmp_path / "theirs")
    ours, files = regard.load(tmp_path / "theirs", device="cpu"), [tmp_path / name for name in ("a.png", "b.png")]
    texts, pictures = ["a photo of a cat", "A dog!", "  two   grey\nbirds, flying  "], [photo(24, 24), photo(24, 24)]
    for image, file in zip(pictures, files, strict=True):
        image.save(file)
    asked = words(texts, padding=True, return_tensors="pt")
    want = theirs(**asked, **processor(pictures, return_tensors="pt")).logits_per_image.softmax(-1)

    assert asked["input_ids"][0, :7].tolist() == [49406, 320, 1125, 539, 320, 2368, 49407]
    assert_near(ours.match(files, texts), want)
    with pytest.raises(C.DataError, match="100 tokens; expected 1 to 75"):
        ours.embed_texts(["cat " * 100])


@pytest.mark.parametrize("case", ["clip that ends with the highest id", "clip text body, highest id"])
def test_early_texts_end_where_their_highest_id_stands_whichever_that_is(case, tmp_path):
    of, ids = pair(image_cases.CASES[case], tmp_path), torch.randint(3, 40, (5, 9))
    reads = of.ours.towers[1] if isinstance(of.ours.c, C.DualEncoder) else of.ours
    theirs = getattr(of.theirs, "text_model", of.theirs)(input_ids=ids).pooler_output
    theirs = of.theirs.text_projection(theirs) if isinstance(of.ours.c, C.DualEncoder) else theirs
    told = reads(ids)

    assert_near(told[1] if isinstance(told, tuple) else told, theirs)


def test_towers_of_an_early_config_are_those_under_dict():
    said = image_cases.clip().config.to_dict()
    early = said | {"text_config_dict": said["text_config"], "vision_config_dict": said["vision_config"],
                    "text_config": {}, "vision_config": {"hidden_size": 7}}  # fmt: skip

    assert canonicalize(parse_hf_config(early, "config.json").config) == canonicalize(
        parse_hf_config(said, "config.json").config
    )


def test_two_towers_that_are_no_clip_are_nobodys():
    c = parse_hf_config(image_cases.clip().config.to_dict(), "config.json").config
    sees, reads = c.towers
    backwards = replace(c, towers=(reads, sees))
    three = replace(c, towers=(sees, reads, reads))
    ends = replace(c, towers=(sees, replace(reads, embed=replace(reads.embed, eos_id=2))))  # which means something else

    assert match_family(c) and not any(map(match_family, (backwards, three, ends)))


# ---------------------------------------------------------------- what is heard


CONFIGS = {"vit": hf.ViTConfig, "deit": hf.DeiTConfig, "imagegpt": hf.ImageGPTConfig, "swin": hf.SwinConfig,
           "clip": hf.CLIPConfig, "clip_text_model": hf.CLIPTextConfig,
           "clip_vision_model": hf.CLIPVisionConfig}  # fmt: skip
ASIDE = {"drop_path_rate", "n_inner", "id2label", "label2id"}  # no setting; said in full; said where there is a head


@pytest.mark.parametrize("name", CONFIGS)
def test_what_transformers_takes_for_granted_is_heard_and_said_again(name):
    usual = json.loads(CONFIGS[name]().to_json_string(use_diff=False))
    c, family, _, longest = parse_hf_config(usual, "config.json")
    said = {key: value for key, value in family.to_hf(c, longest).items() if key not in ASIDE}

    assert said.keys() <= usual.keys()
    assert all(value.items() <= usual[key].items() if isinstance(value, dict) else value == usual[key]
               for key, value in said.items())  # fmt: skip
    assert parse_hf_config({"model_type": name}, "config.json").config == c


@pytest.mark.parametrize("name", ["vit", "imagegpt", "clip", "swin"])
def test_a_config_of_transformers_is_heard_as_the_sentence_that_equals_it(name):
    theirs, ours, _ = images.MODELS[name]()

    assert canonicalize(parse_hf_config(theirs.config.to_dict(), "config.json").config) == canonicalize(ours)


PRESETS = {"vit-b16": "ViTForImageClassification", "vit-l16": "ViTForImageClassification", "swin-tiny":
           "SwinForImageClassification", "clip-vit-b32": "CLIPModel", "imagegpt-large":
           "ImageGPTForCausalImageModeling"}  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_of_their_families(preset):
    assert match_family(regard.preset(preset)).architecture == PRESETS[preset]


REFUSED = [
    ("vit", {"image_size": [24, 30]}, ("image_size", "[24, 30]", "squares")),
    ("vit", {"image_size": 25}, ("6 pixels", "25")),
    ("vit", {"architectures": ["ViTModel"], "pooler_output_size": 35}, ("pooler_output_size", "35")),
    ("vit", {"architectures": ["ViTModel"], "pooler_act": "mish"}, ("pooler_act", "mish", "tanh")),
    ("vit", {"architectures": ["ViTForMaskedImageModeling"]}, ("architectures", "ViTModel")),
    ("swin", {"window_size": 5}, ("window_size", "12 x 12", "do not fill")),
    ("swin", {"window_size": 6}, ("window_size", "3 x 3", "do not fill")),
    ("swin", {"depths": [2, 2]}, ("num_heads", "[2, 2]")),
    ("swin", {"depths": 3}, ("depths", "3", "list")),
    ("swin", {"use_absolute_embeddings": True}, ("use_absolute_embeddings", "true")),
    ("swin", {"image_size": 36, "window_size": 1}, ("trunks", "9 x 9")),
    ("imagegpt", {"vocab_size": 1}, ("vocab_size", "1", "start token")),
    ("imagegpt", {"tie_word_embeddings": True}, ("tie_word_embeddings", "true")),
    ("clip", {"text_config": 3}, ("text_config", "3", "table")),
    ("clip_text_model", {"eos_token_id": 99}, ("eos_id", "99", "53")),
    ("clip_text_model", {"hidden_act": "mish"}, ("hidden_act", "mish", "quick_gelu")),
]
SAID = {
    "vit": image_cases.vit, "swin": image_cases.swin, "imagegpt": image_cases.imagegpt, "clip": image_cases.clip,
    "clip_text_model": image_cases.reader,
}  # fmt: skip


@pytest.mark.parametrize("name, said, words", REFUSED, ids=lambda one: str(one)[:60] if isinstance(one, dict) else "")
def test_what_we_cannot_say_is_refused_by_the_name_of_its_key(name, said, words):
    with pytest.raises(C.DataError) as error:
        parse_hf_config(SAID[name]().config.to_dict() | said, "folder/config.json")

    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in ("folder/config.json", *words)), str(error.value)


@pytest.mark.parametrize("name", ["vit", "deit"])
def test_square_images_may_be_said_as_rows_and_columns(name):
    said = getattr(image_cases, name)().config.to_dict()

    assert (
        parse_hf_config(said | {"image_size": [24, 24], "patch_size": [6, 6]}, "").config
        == parse_hf_config(said, "").config
    )


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("case", ["vit", "vit body", "deit", "deit body"])
def test_names_as_a_model_of_today_has_them_are_read_too(case, tmp_path):
    of = pair(image_cases.CASES[case], tmp_path / "theirs")
    save_file({name: x.contiguous() for name, x in of.theirs.state_dict().items()},
              tmp_path / "theirs" / "model.safetensors", {"format": "pt"})  # fmt: skip
    again = regard.load(tmp_path / "theirs", device="cpu")

    assert all(torch.equal(x, of.ours.state_dict()[name]) for name, x in again.state_dict().items())


EARLY = {
    "clip": {"text_model.embeddings.position_ids": torch.arange(11)[None]},
    "clip text body": {"text_model.embeddings.position_ids": torch.arange(11)[None]},
    "swin": {"swin.encoder.layers.2.blocks.0.attention.self.relative_position_index": torch.zeros(9, 9).long()},
    "imagegpt": {"transformer.h.0.attn.bias": torch.ones(1, 1, 90, 90, dtype=torch.uint8)},
}


@pytest.mark.parametrize("case", EARLY)
def test_what_early_files_hold_beside_the_weights_does_no_harm(case, tmp_path):
    of = pair(image_cases.CASES[case], tmp_path / "theirs")
    more = stored(of.theirs, tmp_path / "again") | EARLY[case]
    if case == "clip text body":  # all of its names had the prefix once
        more = {f"text_model.{name.removeprefix('text_model.')}": x for name, x in more.items()}
    save_file(more, tmp_path / "theirs" / "model.safetensors", {"format": "pt"})
    again = regard.load(tmp_path / "theirs", device="cpu")

    assert all(torch.equal(x, of.ours.state_dict()[name]) for name, x in again.state_dict().items())


def test_a_body_without_a_pooler_is_known_by_its_weights_in_shards_too(tmp_path):
    theirs = hf.ViTModel(image_cases.vit().config, add_pooling_layer=False).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    ours, image = regard.load(tmp_path, device="cpu"), torch.randn(2, 3, 24, 24)

    assert (tmp_path / "model.safetensors.index.json").is_file() and ours.c.head == C.NoHead()
    assert_near(ours(image), theirs(image).last_hidden_state, OUTPUT)


# ---------------------------------------------------------------- two learned tokens


def test_a_model_with_two_learned_tokens_sees_larger_images(tmp_path):
    of = pair(image_cases.CASES["deit"], tmp_path)
    before = of.ours.trunk.position.tables[0].detach().clone()
    of.ours.extend(6 * 6 + 2)
    after = of.ours.trunk.position.tables[0]

    assert of.ours.c.embed.image_size == 36 and of.ours(torch.randn(2, 3, 36, 36)).shape == (2, image_cases.LABELS)
    assert torch.equal(after[:2], before[:2]) and after.shape == (38, image_cases.D)
    with pytest.raises(ValueError, match="2 tokens before them, such as 38 or 51"):
        of.ours.extend(40)


def test_larger_images_are_seen_as_transformers_sees_them(tmp_path):
    of, image = pair(image_cases.CASES["deit"], tmp_path), torch.randn(2, 3, 36, 36)
    of.ours.extend(6 * 6 + 2)

    assert_near(of.ours(image), of.theirs(image, interpolate_pos_encoding=True).logits)


def test_a_family_says_nothing_of_how_images_are_seen():
    for name in ("vit", "swin", "clip"):
        assert (
            not {"image_mean", "size"}
            & FAMILIES[name].to_hf(parse_hf_config({"model_type": name}, "").config, None).keys()
        )
