"""`cmake --install`: a library for C and C++, programs that are built with it, wrong handles."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from checkout import ROOT
from onnx import TensorProto, helper, numpy_helper
from steep_program import output_of

import steep

CONSUMER = ROOT / "tests" / "consumer"
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Steep is installed; moved once, since nothing in it may name the place."""
    folder = tmp_path_factory.mktemp("installed")
    output_of(
        "cmake", "--install", ROOT / "build" / "release", "--prefix", folder / "first", "--strip"
    )
    return (folder / "first").rename(folder / "moved")


@pytest.fixture(scope="module")
def model(prefix: Path) -> Path:
    random = np.random.default_rng(0)

    def weight(name: str, *extents: int) -> onnx.TensorProto:
        values = random.normal(size=extents) * 0.2
        return numpy_helper.from_array(values.astype(np.float32), name)

    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "fc0.weight", "fc0.bias"], ["h"], transB=1),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("Gemm", ["r", "fc1.weight", "fc1.bias"], ["logits"], transB=1),
        ],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 64])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", 10])],
        [
            *(weight("fc0.weight", 32, 64), weight("fc0.bias", 32)),
            *(weight("fc1.weight", 10, 32), weight("fc1.bias", 10)),
        ],
    )
    opset = [helper.make_opsetid("", 18)]
    path = prefix.parent / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def write_artifact(model: Path, path: Path) -> Path:
    """For batches of 32 rows."""
    session = steep.TrainingSession(
        model, loss="softmax_cross_entropy", optimizer="adamw", lr=0.01, clip_norm=1.0
    )
    session.save_artifact(path, (np.zeros((32, 64), np.float32), np.zeros(32, np.int64)))
    return path


def write_linear(path: Path) -> Path:
    """y = x w + z, untrained."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 20]>
        linear (float[rows, 3] x) => (float[rows, 1] y)
        <float[3, 1] w = {0, 0, 0}, float[1] z = {0}> {
            product = MatMul(x, w)
            y = Add(product, z)
        }""")
    onnx.save(model, path)
    return path


def write_loss(path: Path) -> Path:
    """The mean of squares of scores - labels."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 20]>
        loss (float[rows, classes] scores, float[rows, classes] labels) => (float loss) {
            difference = Sub(scores, labels)
            squares = Mul(difference, difference)
            loss = ReduceMean<keepdims = 0>(squares)
        }""")
    onnx.save(model, path)
    return path


def write_values(path: Path) -> Path:
    """A sequence and one more tensor; whether an optional is there."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 20]>
        values (seq(float[2]) s, float[2] x, optional(float[2]) o)
            => (seq(float[2]) longer, bool there) {
            longer = SequenceInsert(s, x)
            there = OptionalHasElement(o)
        }""")
    onnx.save(model, path)
    return path


def library(prefix: Path) -> Path:
    (found,) = prefix.glob("lib*/**/libsteep.so")
    return found


def exported(prefix: Path) -> list[str]:
    table = output_of("nm", "-D", "--defined-only", library(prefix)).splitlines()
    names = [line.split()[-1].partition("@")[0] for line in table]
    return sorted(name for name in names if name != "STEEP_0.1")  # the version itself


def test_find_package_trains_and_runs(prefix: Path, model: Path, tmp_path: Path) -> None:
    build = tmp_path / "build"
    output_of("cmake", "-S", CONSUMER, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    output_of("ninja", "-C", build)
    trained = tmp_path / "trained.onnx"
    said = output_of(build / "train", model, tmp_path / "checkpoint", trained)
    begin, end = map(float, re.findall(r"trained: ([\d.]+) to ([\d.]+)", said)[0])
    assert begin > 2 and end < 0.1
    lines = output_of(build / "infer", trained).splitlines()
    session_input = {"x": np.full((1, 64), 0.5, np.float32)}
    reference = pytest.importorskip("onnxruntime").InferenceSession(trained)
    expected = reference.run(None, session_input)[0][0]
    np.testing.assert_allclose([float(v) for v in lines[0].split()], expected, atol=2e-4)
    assert lines[1].split() == ["x", "grad_logits"]
    assert lines[2].startswith("IoError: ") and "there/is/no.onnx" in "".join(lines[2:])
    assert output_of(build / "gradients", model) == "gradients agree\n"
    files = write_loss(tmp_path / "loss.onnx"), write_values(tmp_path / "values.onnx")
    assert output_of(build / "doors", model, *files, tmp_path) == "all doors open\n"
    assert "steep.SumTo" in (tmp_path / "trace.json").read_text()  # a node of backward
    said = output_of(build / "regression", write_linear(tmp_path / "linear.onnx"))
    assert said == "w = 1.000 -2.000 3.000, z = 0.500\n"
    for ranks, zero in ((2, 0), (3, 1), (2, 2)):
        launch = [prefix / "bin" / "steep", "launch", "-n", ranks, "--", build / "ranks"]
        said = output_of(*launch, model, tmp_path, zero)
        assert sorted(re.findall(r"rank (\d) of (\d) agrees", said)) == [
            (str(rank), str(ranks)) for rank in range(ranks)
        ]
    artifact = write_artifact(model, tmp_path / "model.steep")
    assert "trained: " in output_of(build / "device", artifact, tmp_path / "saved.steep")
    said = output_of(build / "train_static", model, tmp_path / "other", tmp_path / "other.onnx")
    assert "trained: " in said and "libsteep" not in output_of("ldd", build / "train_static")


def test_sources_within_another_project(tmp_path: Path) -> None:
    """The target of find_package, its header, and none of our tests. The engine is not built."""
    text = f"""
cmake_minimum_required(VERSION 3.22)
project(program LANGUAGES C CXX)
add_subdirectory({ROOT} steep EXCLUDE_FROM_ALL)
add_library(program OBJECT {CONSUMER}/train.c)
target_link_libraries(program PRIVATE steep::steep)
add_library(engine OBJECT engine.cpp)  # the engine's C++ types, in a project of C++17
target_link_libraries(engine PRIVATE steep_core)
"""
    (tmp_path / "CMakeLists.txt").write_text(text)
    (tmp_path / "engine.cpp").write_text("#include <steep/limits.h>\nsteep::Limits limits;\n")
    python = f"-DPython_EXECUTABLE={sys.executable}"
    output_of("cmake", "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja", python)
    output_of("ninja", "-C", tmp_path / "build", "program", "engine")
    targets = output_of("ninja", "-C", tmp_path / "build", "-t", "targets", "all")
    assert "libsteep.so:" in targets and "steep_tests:" not in targets
    # another compiler than that of our tests may warn
    assert "-Werror" not in (tmp_path / "build" / "build.ninja").read_text()
    # compiling needs files that are generated, and nothing of the engine
    assert not list(tmp_path.glob("build/steep/**/*.o"))


def test_a_component_that_does_not_exist_is_not_found(prefix: Path, tmp_path: Path) -> None:
    text = """
cmake_minimum_required(VERSION 3.22)
project(program LANGUAGES C)
find_package(steep 0.1 OPTIONAL_COMPONENTS nothing)
message("optional: ${steep_FOUND}")
find_package(steep 0.1 REQUIRED COMPONENTS static)
"""
    (tmp_path / "CMakeLists.txt").write_text(text)
    line = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}"]
    run = subprocess.run(line, check=False, capture_output=True, text=True)
    assert "optional: 1" in run.stderr
    assert run.returncode != 0 and "Steep has no component static" in run.stderr


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not there")
def test_one_line_with_pkg_config(prefix: Path, model: Path, tmp_path: Path) -> None:
    (folder,) = prefix.glob("lib*/**/pkgconfig")
    found = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
    line = f"cc -std=c99 {CONSUMER}/train.c $(pkg-config --cflags --libs steep) -o train"
    output_of("bash", "-euo", "pipefail", "-c", line, cwd=tmp_path, env=found)
    libraries = {**os.environ, "LD_LIBRARY_PATH": str(library(prefix).parent)}
    output_of(tmp_path / "train", model, tmp_path / "c", tmp_path / "t.onnx", env=libraries)


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not there")
def test_the_static_library_with_pkg_config(prefix: Path, model: Path, tmp_path: Path) -> None:
    (folder,) = prefix.glob("lib*/**/pkgconfig")
    found = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
    flags = "$(pkg-config --static --cflags --libs steep-static)"
    line = f"cc -std=c99 {CONSUMER}/gradients.c {flags} -o gradients"
    output_of("bash", "-euo", "pipefail", "-c", line, cwd=tmp_path, env=found)
    assert "libsteep" not in output_of("ldd", tmp_path / "gradients")
    assert output_of(tmp_path / "gradients", model) == "gradients agree\n"


@pytest.mark.parametrize(
    ("language", "code"), FENCED.findall((ROOT / "docs/c_library.md").read_text())
)
def test_code_of_the_page(
    language: str, code: str, prefix: Path, model: Path, tmp_path: Path
) -> None:
    if language not in ("c", "cpp"):
        return
    shutil.copy(model, tmp_path / "model.onnx")
    compiler = ["cc", "-std=c99"] if language == "c" else ["c++", "-std=c++17"]
    folder = library(prefix).parent
    (tmp_path / f"page.{language}").write_text(code)
    options = [f"-I{prefix}/include", f"-L{folder}", f"-Wl,-rpath,{folder}", "-lsteep"]
    output_of(
        *compiler, "-Wall", "-Werror", f"page.{language}", *options, "-o", "page", cwd=tmp_path
    )
    assert "loss" in output_of("./page", cwd=tmp_path)
    assert (tmp_path / "trained.onnx").exists()


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not there")
@pytest.mark.parametrize(
    ("page", "source"), [("quickstart_cpp", "run.cpp"), ("c_library", "train.c")]
)
def test_the_lines_of_the_page(
    page: str, source: str, prefix: Path, model: Path, tmp_path: Path
) -> None:
    """As they stand there, in a home folder with an installation."""
    (tmp_path / "steep").symlink_to(prefix)
    if not (tmp_path / "steep" / "lib" / "pkgconfig").is_dir():
        pytest.skip("the libraries lie elsewhere on this system, as the page says")
    text = (ROOT / "docs" / f"{page}.md").read_text()
    (code,) = (code for _, code in FENCED.findall(text) if "int main" in code)
    (tmp_path / source).write_text(code)
    if page == "quickstart_cpp":  # its model is that of the other quickstart
        python = FENCED.findall((ROOT / "docs" / "quickstart_python.md").read_text())
        (code,) = (code for _, code in python if "onnx.save(" in code)
        output_of(sys.executable, "-c", code, cwd=tmp_path)
    else:
        shutil.copy(model, tmp_path / "model.onnx")
    project = re.findall(r"^    (\w+\(.*\))$", text, re.M)
    (tmp_path / "CMakeLists.txt").write_text("\n".join(project))
    lines = re.findall(r"^    ((?:export|cc|g\+\+|cmake) .*)$", text, re.M)
    assert len(lines) >= 2
    home = {**os.environ, "HOME": str(tmp_path)}
    built = ["./build/train"] if project else []
    script = "\n".join([*lines, f"./{Path(source).stem}", *built])
    said = output_of("bash", "-euo", "pipefail", "-c", script, cwd=tmp_path, env=home)
    assert "1 output(s)" in said or "step 10  loss" in said


def build_program_of(page: str, prefix: Path, model: Path, folder: Path) -> None:
    """Compile the page's program in C as `page`, in a folder that also has its model."""
    text = (ROOT / "docs" / page).read_text()
    ((_, code),) = [block for block in FENCED.findall(text) if block[0] == "c"]
    shutil.copy(model, folder / "model.onnx")
    (folder / "page.c").write_text(code)
    libraries = library(prefix).parent
    options = [f"-I{prefix}/include", f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lsteep"]
    output_of("cc", "-std=c99", "-Wall", "-Werror", "page.c", *options, "-o", "page", cwd=folder)


def test_gradients_of_the_page(prefix: Path, model: Path, tmp_path: Path) -> None:
    """The gradient of a bias is the sum of 8 rows of ones."""
    build_program_of("forward_backward.md", prefix, model, tmp_path)
    assert output_of("./page", cwd=tmp_path) == "gradient 8\n"


def test_several_processes_of_the_page(prefix: Path, model: Path, tmp_path: Path) -> None:
    build_program_of("parallel.md", prefix, model, tmp_path)
    said = output_of(prefix / "bin/steep", "launch", "-n", 2, "--", "./page", cwd=tmp_path)
    assert re.findall(r"loss of all rows: [\d.]+$", said, re.M)
    assert (tmp_path / "checkpoint").is_dir()
    alone = subprocess.run([tmp_path / "page"], capture_output=True, text=True, check=False)
    assert alone.returncode == 1 and alone.stderr.startswith("ProviderError: No launcher")


def needed(binary: Path) -> set[str]:
    return set(re.findall(r"NEEDED +(\S+)\.so", output_of("objdump", "-p", binary)))


def test_the_page_lists_the_packages_of_a_machine_that_runs_it(prefix: Path) -> None:
    page = (ROOT / "docs" / "c_library.md").read_text()
    of_library, of_program = (
        " ".join(line.replace("zlib", "libz").split("#")[0].split()[2:])
        for line in re.findall(r"^    (apt-get install .*)", page, re.M)
    )
    everywhere = {"libstdc++", "libm", "libgcc_s", "libc", "ld-linux-x86-64"}

    def missing(binary: Path, packages: str) -> list[str]:
        names = {name for name in needed(binary) - everywhere if not name.startswith("libdnnl")}
        return sorted(n for n in names if not re.search(rf"\b{re.escape(n)}-?\d", packages))

    assert missing(library(prefix), of_library) == []
    (program,) = prefix.glob("lib*/**/steep/steep")
    assert missing(program, f"{of_library} {of_program}") == []


OTHER_PROTOBUF = """
#include <cstdlib>
namespace google { namespace protobuf {
class MessageLite { public: bool ParseFromArray(const void*, int); };
bool MessageLite::ParseFromArray(const void*, int) { std::abort(); }
} }
extern "C" int call_it(int count) {
  google::protobuf::MessageLite m;
  return count < 9 || m.ParseFromArray(nullptr, 0);
}
"""
OPENS = """
#include <steep_c.h>
#include <stdio.h>
int call_it(int count);
int main(int count, char** arguments) {
  steep_error* error = NULL;
  steep_inference* session = NULL;
  const steep_code code = steep_inference_open(arguments[1], NULL, &session, &error);
  printf("%s\\n", code == STEEP_OK && call_it(count) ? "opened" : steep_error_message(error));
  return 0;
}
"""


@pytest.fixture(scope="module")
def beside_protobuf(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list]:
    """A folder with another version of protobuf, as an archive and shared, and a compile line."""
    folder = tmp_path_factory.mktemp("protobuf")
    (folder / "other.cc").write_text(OTHER_PROTOBUF)
    (folder / "opens.c").write_text(OPENS)
    output_of("c++", "-c", "-fPIC", "other.cc", "-o", "other.o", cwd=folder)
    output_of("ar", "rcs", "libother.a", "other.o", cwd=folder)
    output_of("c++", "-shared", "other.o", "-o", "libshared.so", cwd=folder)
    own = library(prefix).parent
    paths = ["-I", prefix / "include", "-L.", "-L", own, f"-Wl,-rpath,{own}:{folder}"]
    return folder, ["cc", "opens.c", *paths, "-lsteep"]


@pytest.mark.parametrize(("name", "where"), [("other", "./opens"), ("shared", "libshared.so")])
def test_another_protobuf_of_the_program_is_refused(
    name: str, where: str, beside_protobuf: tuple[Path, list], model: Path
) -> None:
    """The loader would take its functions for the library's own, whose messages are others."""
    folder, line = beside_protobuf
    output_of(*line, f"-l{name}", "-lstdc++", "-o", "opens", cwd=folder)
    said = output_of("./opens", model, cwd=folder)
    assert said.startswith("Another protobuf takes the place of the one")
    assert re.search(rf"received: functions of protobuf in \S*{where}\n", said)
    assert "-Wl,--exclude-libs,ALL" in said


def test_an_archive_of_protobuf_that_the_program_keeps_to_itself(
    beside_protobuf: tuple[Path, list], model: Path
) -> None:
    folder, line = beside_protobuf
    flags = ["-lother", "-lstdc++", "-Wl,--exclude-libs,ALL", "-o", "opens"]
    output_of(*line, *flags, cwd=folder)
    assert output_of("./opens", model, cwd=folder) == "opened\n"


def test_a_shared_protobuf_and_a_library_that_looks_at_itself_first(
    beside_protobuf: tuple[Path, list], prefix: Path, model: Path
) -> None:
    """RTLD_DEEPBIND, as docs/c_library.md says."""
    folder, _ = beside_protobuf
    code = """
import ctypes, os, sys
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(sys.argv[2], mode=os.RTLD_NOW | int(sys.argv[4]))
session = ctypes.c_void_p()
print(library.steep_inference_open(sys.argv[3].encode(), None, ctypes.byref(session), None))
"""
    words = [sys.executable, "-c", code, folder / "libshared.so", library(prefix), model]
    assert output_of(*words, os.RTLD_DEEPBIND) == "0\n"
    assert output_of(*words, 0) == "4\n"  # STEEP_ERROR_PROVIDER


def test_exported_symbols_are_those_of_the_list(prefix: Path) -> None:
    """A symbol that goes, or comes, is a change of the library's interface: change the list."""
    assert exported(prefix) == (CONSUMER / "steep_c.symbols").read_text().split()
    headers = "".join(header.read_text() for header in (ROOT / "include").glob("steep_*.h"))
    declared = re.findall(r"^STEEP_API [^;(]*?(steep_\w+)\(", headers, re.M)
    assert sorted(declared) == exported(prefix)


def test_the_program_of_an_installation(prefix: Path) -> None:
    program = prefix / "bin" / "steep"
    assert output_of(program, "--version").startswith("steep ")
    for library in prefix.glob("lib*/**/libdnnl*"):  # there is none with a oneDNN of the system
        hidden = library.rename(library.with_name("hidden"))
        try:
            done = subprocess.run([program], capture_output=True, text=True, check=False)
        finally:
            hidden.rename(library)
        assert done.returncode == 1
        assert done.stderr.startswith("steep: A shared library that Steep needs is missing.")
        assert library.name in done.stderr and "install Steep again (make install)" in done.stderr


CALLS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
names = sys.argv[2:]
# of the others the first argument is a text, a number or where a result goes
kinds = ("options", "training", "inference", "gradients", "run", "artifact", "tensors", "bytes",
         "strings", "report", "error", "memory", "data", "batches")
of_handles = [
    n for n in names
    if n.split("_")[1] in kinds
    and not n.endswith(("_new", "_open", "_open_bytes", "_open_weights"))
]
none = [ctypes.c_void_p(0)] * 10
block = ctypes.create_string_buffer(256)
address = ctypes.addressof(block)
options = ctypes.c_void_p()
assert library.steep_options_new(1, ctypes.byref(options), None) == 0
assert library.steep_options_free(options) == 0  # and is a wrong handle now
wrong = [0x10, 0xDEADBEEF, (1 << 64) - 1, address, address + 1, options.value]
calls = 0
for name in names:
    getattr(library, name)(*none)
    calls += 1
for name in of_handles:
    for handle in wrong:
        getattr(library, name)(ctypes.c_void_p(handle), *none)
        calls += 1
library.steep_error_message.restype = ctypes.c_char_p
for handle in [None, *wrong]:
    error, lr = ctypes.c_void_p(), ctypes.c_double()
    code = library.steep_training_lr(
        ctypes.c_void_p(handle), ctypes.byref(lr), ctypes.byref(error)
    )
    assert code == 10, code
    assert b"steep_training" in library.steep_error_message(error)
print("calls", calls)
"""


def test_null_wrong_and_freed_handles_are_errors(prefix: Path) -> None:
    said = output_of(sys.executable, "-c", CALLS, library(prefix), *exported(prefix))
    assert int(said.split()[-1]) > 300


@pytest.mark.parametrize("seed", [0, 1])
def test_calls_at_random(seed: int, prefix: Path, tmp_path: Path) -> None:
    """The short form of tests/attack/c_calls.py."""
    script = ROOT / "tests" / "attack" / "c_calls.py"
    said = output_of(sys.executable, script, library(prefix), "--seed", seed, cwd=tmp_path)
    refused = int(re.findall(r"^calls 3000, refused (\d+)", said, re.M)[0])
    assert 500 < refused < 2500  # neither is all of it refused, nor nothing


@pytest.mark.parametrize(
    "compiler",
    [
        ("cc", "-std=c99", "-Wstrict-prototypes", "-Wold-style-definition", "-xc"),
        ("cc", "-std=c11", "-Wc++-compat", "-xc"),
        ("c++", "-std=c++11", "-Wold-style-cast", "-Wzero-as-null-pointer-constant", "-xc++"),
        ("c++", "-std=c++17", "-xc++"),
    ],
)
def test_headers_stand_alone_and_together(compiler: tuple[str, ...], prefix: Path) -> None:
    strict = [
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-fsyntax-only",
        "-I",
        prefix / "include",
    ]
    for names in (
        ["steep_c"],
        ["steep_c_models"],
        ["steep_c_parallel"],
        ["steep_artifact"],
        ["steep/provider"],
        ["steep_c_parallel", "steep_c_models", "steep_c", "steep_artifact", "steep/provider"],
    ):
        text = "".join(f"#include <{name}.h>\n" for name in names)
        output_of(*compiler, *strict, "-", input=text)


@pytest.mark.skipif(shutil.which("rustc") is None, reason="there is no Rust here")
def test_the_example_in_rust(prefix: Path, tmp_path: Path) -> None:
    example = ROOT / "examples" / "rust" / "train.rs"
    folder = library(prefix).parent
    link = ["-L", folder, "-l", "steep", "-C", f"link-arg=-Wl,-rpath,{folder}"]
    output_of("rustc", "--edition", "2021", "-D", "warnings", example, *link, cwd=tmp_path)
    output_of(sys.executable, ROOT / "examples" / "linear_regression" / "make_model.py", tmp_path)
    said = output_of("./train", "linear.onnx", "trained.onnx", cwd=tmp_path)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", said)]
    assert losses[0] > 0.01 and losses[-1] < 1e-4
    assert (tmp_path / "trained.onnx").exists()
