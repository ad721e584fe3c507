"""Images in folders as data of the `steep` program, against Pillow."""

import re
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from PIL import Image
from steep_program import steep, weights

CROSS_ENTROPY = ("--loss", "softmax_cross_entropy")
SGD = ("--optimizer", "sgd", "--lr", 0.5)


def identity(path: Path, shape: str, dtype: str = "float") -> None:
    """A model that returns its images."""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g ({dtype}[{shape}] x)
        => ({dtype}[{shape}] y) {{ y = Identity(x) }}"""
    onnx.save(onnx.parser.parse_model(text), path)


def classifier(path: Path, classes: int = 2) -> None:
    """Scores of classes from pixels of 4 × 4."""
    row = ", ".join(f"{0.01 * i}" for i in range(48 * classes))
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n,3,4,4] x)
        => (float[n,{classes}] y) <float[48,{classes}] w = {{{row}}}>
        {{ f = Flatten<axis = 1>(x) y = MatMul(f, w) }}"""
    onnx.save(onnx.parser.parse_model(text), path)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Waves of colours, with noise."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 9), np.cos(y / 7), np.sin((x + y) / 13)]
    noise = np.random.default_rng(seed).integers(-20, 20, (height, width, 3))
    pixels = 127 + 100 * np.stack(waves, -1) + noise
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def fed(model: Path, data: Path, *words: object) -> np.ndarray:
    """What the model is fed."""
    out = model.with_suffix(".npz")
    steep("predict", model, "--data", data, "--out", out, *words)
    result: np.ndarray = np.load(out)["y"]
    return result


def by_pillow(path: Path, mode: str, height: int, width: int) -> np.ndarray:
    with Image.open(path) as image:
        small = image.convert(mode).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(small).reshape(height, width, -1)


@pytest.fixture
def kinds(tmp_path: Path) -> Path:
    """A file of each kind that is read."""
    folder = tmp_path / "kinds"
    folder.mkdir()
    image = picture(61, 43)
    for mode in ("L", "RGB", "RGBA", "LA", "1"):
        image.convert(mode).save(folder / f"{mode}.png")
    palette = image.convert("P", palette=Image.Palette.ADAPTIVE, colors=9)
    palette.save(folder / "p.png")
    palette.save(folder / "p_clear.png", transparency=3)
    for mode in ("L", "RGB", "CMYK"):
        image.convert(mode).save(folder / f"{mode}.jpg")
    image.save(folder / "progressive.jpeg", progressive=True, quality=60)
    image.save(folder / "whole.JPG", subsampling=0)
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: to be turned, which is not done
    image.save(folder / "turned.jpg", exif=exif)
    shutil.copy(folder / "RGB.jpg", folder / "named_otherwise.png")
    return folder


@pytest.mark.parametrize(("height", "width"), [(43, 61), (8, 8), (60, 20), (90, 130)])
def test_images_are_those_of_pillow(kinds: Path, tmp_path: Path, height: int, width: int) -> None:
    files = sorted(kinds.iterdir())
    assert len(files) == 14
    for channels, mode in ((3, "RGB"), (1, "L")):
        identity(tmp_path / "m.onnx", f"n,{channels},{height},{width}")
        got = fed(tmp_path / "m.onnx", kinds)
        for file, image in zip(files, got, strict=True):
            want = by_pillow(file, mode, height, width).transpose(2, 0, 1) / np.float32(255)
            assert np.abs(image - want).max() <= 1 / 255, file


def test_forms_of_inputs(kinds: Path, tmp_path: Path) -> None:
    file, model = kinds / "RGB.png", tmp_path / "m.onnx"
    pixels = by_pillow(file, "RGB", 10, 12)
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    normal = (pixels / np.float32(255) - mean) / std
    words = ("--image-mean", "0.485,0.456,0.406", "--image-std", "0.229,0.224,0.225")
    identity(model, "n,10,12,3")
    np.testing.assert_array_equal(fed(model, file, *words)[0], normal)
    identity(model, "n,3,h,w")
    shown = fed(model, file, *words, "--image-size", "10,12")[0]
    np.testing.assert_array_equal(shown, normal.transpose(2, 0, 1))
    identity(model, "n,3,10,12", "float16")
    half = fed(model, file)[0]
    np.testing.assert_array_equal(half, (pixels / np.float32(255)).transpose(2, 0, 1).astype("e"))
    identity(model, "n,10,12,3", "uint8")
    np.testing.assert_array_equal(fed(model, file)[0], pixels)


def test_sixteen_bits_are_rounded(tmp_path: Path) -> None:
    levels = np.arange(0, 65536, 257 // 2, dtype=np.uint16)[:510].reshape(17, 30)
    Image.fromarray(levels).save(tmp_path / "deep.png")
    identity(tmp_path / "m.onnx", "n,1,17,30", "uint8")
    got = fed(tmp_path / "m.onnx", tmp_path / "deep.png")[0, 0]
    np.testing.assert_array_equal(got, np.round(levels / 257))


def test_orientations_that_are_not_applied_are_counted(kinds: Path, tmp_path: Path) -> None:
    identity(tmp_path / "m.onnx", "n,3,8,8")
    words = ("predict", tmp_path / "m.onnx", "--out", tmp_path / "o.npz", "--data")
    said = steep(*words, kinds)
    assert "warning: EXIF asks to turn 1 of 14 images, which is not done" in said
    assert f"the first is {kinds / 'turned.jpg'}" in said
    assert "EXIF" not in steep(*words, kinds / "RGB.jpg")
    some = tmp_path / "some"
    some.mkdir()
    for value in range(1, 9):
        exif = Image.Exif()
        exif[0x010F] = "a maker of cameras"
        exif[0x0112] = value
        picture(9, 7).save(some / f"{value}.png", exif=exif)
        picture(9, 7).save(some / f"{value}.jpg", exif=exif)
    assert "EXIF asks to turn 14 of 16 images" in steep(*words, some)


# --- training ------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten images of two classes in `train`, and a model of them."""
    for name in ("cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for i in range(5):
            image = picture(20, 16, seed=i)
            if name == "cat":
                image = image.point([255 - v for v in range(256)] * 3)
            image.save(tmp_path / "train" / name / f"{i}.png")
    (tmp_path / "train" / "cat" / "notes.txt").touch()
    classifier(tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*words: object, data: str = "train", code: int | None = 0) -> str:
    sgd = () if "--optimizer" in words else SGD
    return steep("train", "m.onnx", "--data", data, *CROSS_ENTROPY, *sgd, *words, code=code)


def as_arrays(root: Path) -> dict[str, np.ndarray]:
    names = sorted(p.name for p in root.iterdir())
    files = [(i, file) for i, name in enumerate(names) for file in sorted((root / name).iterdir())]
    files = [(i, file) for i, file in files if file.suffix == ".png"]
    x = [by_pillow(file, "RGB", 4, 4).transpose(2, 0, 1) / np.float32(255) for _, file in files]
    return {"x": np.stack(x), "label": np.array([i for i, _ in files])}


def test_folders_train_as_arrays_do(folder: Path) -> None:
    np.savez("t.npz", **as_arrays(folder / "train"))
    words = ("--batch", 3, "--epochs", 2, "--seed", 5, "--validation-split", 0.2)
    words = (*words, "--metric", "accuracy")
    images = train(*words, "--out", "i.onnx")
    arrays = train(*words, "--out", "a.onnx", data="t.npz")
    np.testing.assert_array_equal(weights(folder / "i.onnx")["w"], weights(folder / "a.onnx")["w"])
    assert re.findall(r"validation loss \S+|accuracy \S+", images) == re.findall(
        r"validation loss \S+|accuracy \S+", arrays
    )
    assert "train: x from 10 images, RGB of 4 × 4 pixels, 0 to 1" in images
    assert "label from 'label' int64[10]; classes: 0 'cat', 1 'dog'" in images
    assert "1 hidden or other file not used" in images


def test_a_run_is_resumed_bit_for_bit(folder: Path) -> None:
    words = ("--batch", 3, "--threads", 1)
    train(*words, "--epochs", 2, "--out", "whole.onnx")
    train(*words, "--epochs", 1, "--checkpoint", "run")
    train(*words, "--epochs", 2, "--resume", "run", "--out", "parts.onnx")
    whole, parts = weights(folder / "whole.onnx"), weights(folder / "parts.onnx")
    np.testing.assert_array_equal(whole["w"], parts["w"])


def test_other_commands(folder: Path) -> None:
    train("--epochs", 60, "--optimizer", "adam", "--lr", 0.05, "--out", "t.onnx")
    said = steep("eval", "t.onnx", "--data", "train", *CROSS_ENTROPY)
    assert "accuracy 1.0000" in said and "classes: 0 'cat', 1 'dog'" in said
    said = steep("predict", "t.onnx", "--data", "train", "--out", "p.npz")
    assert "10 images" in said and "not used: 'label'" in said
    assert (np.load("p.npz")["y"].argmax(1) == np.repeat([0, 1], 5)).all()
    assert "lr" in steep("lr-find", "m.onnx", "--data", "train", *CROSS_ENTROPY, "--steps", 20)
    flat = ("eval", "t.onnx", "--data", "train/cat", *CROSS_ENTROPY)
    assert "no labels" in steep(*flat)
    single = steep("predict", "t.onnx", "--data", "train/dog/3.png", "--out", "q.npz")
    assert "1 image," in single
    np.testing.assert_array_equal(np.load("q.npz")["y"][0], np.load("p.npz")["y"][8])


def test_validation_has_the_labels_of_training(folder: Path) -> None:
    shutil.copytree(folder / "train" / "dog", folder / "val" / "dog")
    said = train("--validation", "val", "--metric", "accuracy", "--epochs", 30)
    assert "validation, val: x from 5 images" in said
    assert said.count("classes: 0 'cat', 1 'dog'") == 2
    assert "accuracy 1.0000" in said
    (folder / "val" / "dog").rename(folder / "val" / "bird")
    assert "val/bird is none of the classes" in train("--validation", "val", code=3)
    said = train("--image-classes", "dog,bird,cat", code=3)
    assert "2 folders" in said and "dog, bird, cat" in said
    said = train("--image-classes", "dog,cat", "--epochs", 1)
    assert "classes: 0 'dog', 1 'cat'" in said


def test_arrays_beside_images(folder: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n,3,4,4] x, float[n,2] z)
        => (float[n,2] y) <float[48,2] w = {%s}>
        { f = Flatten<axis = 1>(x) p = MatMul(f, w) y = Add(p, z) }"""
    onnx.save(onnx.parser.parse_model(text % ", ".join(["0.5"] * 96)), "m.onnx")
    np.savez("z.npz", z=np.ones((10, 2), np.float32))
    said = steep("train", "m.onnx", "--data", "train", "z.npz", *CROSS_ENTROPY, *SGD)
    assert "x from 10 images" in said and "z from 'z' float32[10, 2]" in said
    np.savez("z.npz", z=np.ones((9, 2), np.float32))
    said = steep("train", "m.onnx", "--data", "train", "z.npz", *CROSS_ENTROPY, *SGD, code=3)
    assert "different numbers of rows" in said


# --- bad input -----------------------------------------------------------------------------------


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side: int) -> bytes:
    """The header of a PNG of so many pixels."""
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


DAMAGE = {
    "empty": (b"", "is empty"),
    "text": (b"a photograph", "neither JPEG nor PNG"),
    "gif": (b"GIF89a" + bytes(40), "received: GIF"),
    "bomb": (bomb(60_000), "has too many pixels"),
    "no pixels": (bomb(0), "cannot be decoded"),
    "jpeg's begin": (b"\xff\xd8\xff\xe0", "ends too early"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_each_file_is_looked_at_before_the_first_step(folder: Path, kind: str) -> None:
    damage, why = DAMAGE[kind]
    (folder / "train" / "dog" / "3.png").write_bytes(damage)
    said = train("--out", "o.onnx", code=3)
    assert "train/dog/3.png" in said and why in said, said
    assert "epoch" not in said and not (folder / "o.onnx").exists()


def test_a_truncated_image_ends_the_run_and_is_named(folder: Path) -> None:
    for name, ending in (("jpeg", "jpg"), ("png", "png")):
        image = picture(64, 64)
        file = folder / "train" / "dog" / f"9.{ending}"
        image.save(file)
        file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
        said = train("--no-shuffle", code=3)
        assert f"train/dog/9.{ending} cannot be decoded" in said, said
        assert f"a complete {name.upper()} image" in said
        file.unlink()
    image.save(folder / "train" / "dog" / "9.jpg")
    (file := folder / "train" / "dog" / "9.jpg").write_bytes(
        file.read_bytes().replace(b"\xff\xd9", b"") + b"\xff\xd9"
    )
    assert "10 rows" not in train()  # its end is there: it is read


def test_folders_that_are_refused(folder: Path) -> None:
    (folder / "none").mkdir()
    assert "is a folder without files of data" in train(data="none", code=3)
    (folder / "train" / "empty").mkdir()
    assert "train/empty is a class without images" in train(code=3)
    (folder / "train" / "empty").rmdir()
    (folder / "train" / "dog" / "a.webp").touch()
    assert "train/dog/a.webp is an image that is not read" in train(code=3)
    (folder / "train" / "dog" / "a.webp").unlink()
    (folder / "train" / "dog" / "a.png").symlink_to("nowhere.png")
    assert "train/dog/a.png" in train(code=4)
    (folder / "train" / "dog" / "a.png").unlink()
    shutil.copy(folder / "train" / "dog" / "1.png", folder / "train")
    assert "train has images beside folders" in train(code=3)
    assert "Put the images into folders" in train(data="train/dog", code=3)


def test_options_are_checked(folder: Path) -> None:
    np.savez("t.npz", **as_arrays(folder / "train"))
    assert "are for folders of images" in train("--image-size", 4, data="t.npz", code=3)
    assert "Leave --image-size out" in train("--image-size", 5, code=3)
    assert "expected a side" in train("--image-size", "5,x", code=2)
    assert "one for each of 3 channels" in train("--image-mean", "1,2", code=3)
    assert "--image-std" in train("--image-std", "0", code=2)
    for shape, why in (
        ("n,48", "of 4 axes"),
        ("n,5,4,4", "1 or 3 channels"),
        ("n,3,4,3", "either axis"),
        ("n,3,h,w", "--image-size 224"),
    ):
        identity(folder / "i.onnx", shape)
        said = steep("predict", "i.onnx", "--data", "train", "--out", "o.npz", code=3)
        assert why in said and "x" in said, said


def test_memory_is_that_of_a_batch(folder: Path) -> None:
    """Images of 60 MB in all train within 20 MB."""
    for i in range(20):
        picture(1000, 1000, seed=i).save(folder / "train" / "cat" / f"large{i}.jpg", quality=30)
    said = train("--batch", 2, "--max-bytes", "20M")
    assert "25 images" in said or "30 images" in said
