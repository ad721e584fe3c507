"""Every reader of files has a fuzz target, and every target is run and written about."""

import re

from checkout import ROOT

FUZZ = ROOT / "tests" / "fuzz"
READER = re.compile(r"\b(\w+)\(const ByteSource& source")
# Readers, and parts of readers, that a target reaches by another function.
REACHED_BY = {
    "read_artifact": "ArtifactSession",
    "read_jpeg": "decode_image",
    "read_png": "decode_image",
    "is_jpeg": "decode_image",
    "is_png": "decode_image",
    "check_size": "decode_image",
    "refuse_damaged": "decode_image",
    "Cursor": "decode_image",
    "read_safetensors_header": "read_safetensors",
}
# Readers whose bytes come in another way.
OTHERS = {"steep_open_parquet", "import_model", "reader.decode"}


def test_each_reader_is_fuzzed() -> None:
    headers = [*(ROOT / "src").rglob("*.h")]
    found = {name for path in headers for name in READER.findall(path.read_text())}
    found -= {"crc32c_of"}  # a sum of any bytes: reads no form
    assert len(found) > 10 and found >= set(REACHED_BY)
    targets = [*FUZZ.glob("*_fuzz.cc"), *FUZZ.glob("*_fuzz.py")]
    text = "\n".join(path.read_text() for path in targets)
    for name in {REACHED_BY.get(name, name) for name in found} | OTHERS:
        assert re.search(rf"\b{re.escape(name)}\b", text), f"{name} has no target in tests/fuzz"


def test_targets_have_seeds_and_a_row() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    for path in [*FUZZ.glob("*_fuzz.cc"), *FUZZ.glob("*_fuzz.py")]:
        assert f"tests/fuzz/{path.name}" in page
        name = path.stem.removesuffix("_fuzz")
        if name != "artifact":  # the form of artifacts changes with each version of the library
            assert any((FUZZ / "corpus" / name).iterdir()), name
    assert " fuzz" in (ROOT / ".ci" / "nightly").read_text()
