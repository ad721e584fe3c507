"""Facts about the repository that nothing else keeps true."""

import ast
import graphlib
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from checkout import ROOT

import steep
from steep import backends

CODE = {".cc", ".h", ".cu", ".cuh", ".py", ".cmake"}


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def test_one_version() -> None:
    cmake = re.search(r"project\(steep VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    wheel = re.search(r'^version = "([\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert cmake and wheel
    assert cmake[1] == wheel[1] == steep.__version__
    compat = (ROOT / "packaging" / "steep-compat" / "pyproject.toml").read_text()
    named = re.findall(r'^version = "([\d.]+)"|steep\[torch,compat\]==([\d.]+)', compat, re.M)
    assert [own or needed for own, needed in named] == [steep.__version__] * 2


def test_one_entry_point() -> None:
    group = f"[project.entry-points.{backends.GROUP}]"
    text = (ROOT / "pyproject.toml").read_text().partition(f"{group}\n")[2]
    assert text.splitlines()[0] == f'{backends.NAME} = "{backends.VALUE}"'


LONGEST_FILE = 600  # lines; above 500 a file is looked at, for a subject that could leave it


def test_no_file_is_too_long() -> None:
    lengths = {
        str(f.relative_to(ROOT)): len(f.read_text().splitlines())
        for f in tracked_files()
        if f.suffix in CODE
    }
    assert lengths
    assert {f: n for f, n in lengths.items() if n > LONGEST_FILE} == {}


LONGEST_FUNCTION = 100  # lines, of C++
MOST_STATEMENTS = 50  # of C++, where a keyword such as `if` counts; ruff counts those of Python

# Tables that are functions: rows, and no other logic.
LONG_TABLES = {
    ("src/train/option_rows.h", "visit_optimizer_options"): "a row for each option",
    ("providers/cpu/elementwise_int.cc", "evaluate"): "a row for each operation",
    ("providers/cpu/elementwise_loops.cc", "evaluate"): "a row for each operation",
    ("providers/cpu/elementwise_simd.cc", "evaluate"): "a row for each operation",
}

NO_CODE = re.compile(
    r'R"(?P<end>\w*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|^#(?:\\\n|[^\n])*'
    r"|(?<!\w)'(?:\\.|[^'\\])+'",
    re.S | re.M,
)


class Function(NamedTuple):
    """A function of C++."""

    name: str
    lines: int
    statements: int


def functions_of(text: str) -> list[Function]:
    """The functions of C++ as clang-format leaves it."""
    code = NO_CODE.sub(lambda skipped: "\n" * skipped[0].count("\n"), text)
    found = []
    scopes: list[tuple[str, int, int, str]] = []  # of kind, line, place, name
    header, line = "", 1
    for at, c in enumerate(code):
        line += c == "\n"
        if c == "{":
            kind, name = "block", ""
            outside = all(kind == "room" for kind, *_ in scopes)
            if outside and re.search(r"\b(namespace|class|struct|union|extern)\b[^()]*$", header):
                kind = "room"
            elif outside and 0 < header.count("(") == header.count(")") and code[at - 1].isspace():
                named = re.search(r"(operator\W+|\w+)\s*\(", header)
                kind, name = "function", named[1] if named else header.strip()
            scopes.append((kind, line, at, name))
            header = header if kind == "block" and outside else ""
        elif c == "}":
            kind, first, begin, name = scopes.pop()
            if kind == "function":
                found.append(Function(name, line - first + 1, statements_of(code[begin:at])))
            if kind != "block":
                header = ""
        elif c == ";" and not any(kind == "function" for kind, *_ in scopes):
            header = ""
        else:
            header += c
    assert scopes == []
    return found


def statements_of(body: str) -> int:
    """The number of statements, those of nested functions too; `if` and its like count as one."""
    keywords = len(re.findall(r"\b(?:if|for|while|switch|do|try)\b", body))
    return body.count(";") - 2 * len(re.findall(r"\bfor \([^;:{]*;", body)) + keywords


def test_no_function_of_cpp_is_too_long() -> None:
    functions = [
        (str(f.relative_to(ROOT)), function)
        for f in tracked_files()
        if f.suffix in {".cc", ".h", ".cu", ".cuh"}
        for function in functions_of(f.read_text())
    ]
    assert len(functions) > 1000
    long = {
        (file, function.name)
        for file, function in functions
        if function.lines > LONGEST_FUNCTION or function.statements > MOST_STATEMENTS
    }
    assert long == LONG_TABLES.keys()


@pytest.mark.parametrize("folder", ["utils", "common"])
def test_no_catch_all_folders(folder: str) -> None:
    assert [f for f in tracked_files() if folder in f.relative_to(ROOT).parts[:-1]] == []


def test_every_header_has_pragma_once() -> None:
    # -inl.h files are included once for each instruction set; Highway's toggle guards them.
    headers = [f for f in tracked_files() if f.suffix == ".h" and not f.stem.endswith("-inl")]
    assert [f for f in headers if "#pragma once" not in f.read_text()] == []


def test_no_class_name_is_taken_twice() -> None:
    """The linker takes one of two classes of a name for both, and says nothing."""
    seen: dict[tuple[str, str], list[str]] = {}
    for file in tracked_files():
        if file.suffix != ".h" or file.stem.endswith("-inl"):
            continue
        namespace = ""
        for line in file.read_text().splitlines():
            if found := re.match(r"namespace ([\w:]+) \{", line):
                namespace = found[1]
            elif found := re.match(
                r"(?:class|struct|enum class) (\w+)(?: final)?(?: :.*)? \{", line
            ):
                seen.setdefault((namespace, found[1]), []).append(file.name)
    assert len(seen) > 50
    assert {name: files for name, files in seen.items() if len(files) > 1} == {}


def rooms(readme: str, section: str) -> dict[str, int]:
    """The folders of a README's table, by their line; the lowest is 0."""
    text = (ROOT / readme).read_text().partition(f"## {section}")[2]
    lines = [line.split() for line in text.splitlines() if line.startswith("    ")]
    return {room: level for level, line in enumerate(reversed(lines)) for room in line}


def room_of(path: Path, listed: dict[str, int]) -> str:
    """The innermost folder with a line of its own; `path` is relative to ROOT."""
    if path.parts[0] == "providers":
        return "providers"
    folders = path.parts[1:-1]
    inner = "/".join(folders[:2])
    return inner if inner in listed else "/".join(folders[:1])


def test_includes_run_downwards() -> None:
    level = rooms("src/README.md", "Who may include whom")
    upward = []
    for file in tracked_files():
        path = file.relative_to(ROOT)
        if path.parts[0] not in ("src", "providers") or file.suffix not in (".cc", ".h"):
            continue
        room = room_of(path, level)
        assert room in level, f"src/README.md has no line for {room}/"
        for number, line in enumerate(file.read_text().splitlines(), 1):
            header = re.match(r'#include "([^"]+)"', line)
            if not header:
                continue
            inside = Path("src") / header[1]
            if (ROOT / header[1]).exists() and header[1].startswith("providers/"):
                inside = Path(header[1])
            if not (ROOT / inside).exists():
                continue  # ours to offer (steep/), or another library's
            target = room_of(inside, level)
            if target != room and level[target] >= level[room]:
                upward.append(f"{path}:{number}: {room}/ may not include {target}/: {line}")
    assert upward == []


PACKAGE = ROOT / "python" / "steep"


def imports_of_package() -> dict[str, set[str]]:
    """The modules of the package, each with those of the package that it imports anywhere."""
    files = [f for f in tracked_files() if f.is_relative_to(PACKAGE) and f.suffix == ".py"]
    modules = {".".join(("steep", *f.relative_to(PACKAGE).with_suffix("").parts)): f for f in files}
    found = {}
    for module, file in modules.items():
        imported = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in node.names:
                    inner = f"{node.module}.{name.name}"
                    imported.add(inner if inner in modules else node.module)
            elif isinstance(node, ast.Import):
                imported.update(name.name for name in node.names)
        found[module] = imported & modules.keys()
    return found


def room_of_module(module: str) -> str:
    """The folder of a module in the package."""
    folder = "/".join(module.split(".")[1:-1])
    return folder or "steep"


FACADES = {"steep.__init__", "steep.compat.__init__", "steep.compat.__main__"}
"""Modules that offer what the doors have."""


def test_imports_run_downwards() -> None:
    level = rooms("python/steep/README.md", "Who may import whom")
    imports = imports_of_package()
    assert {room_of_module(m) for m in imports} == level.keys()
    upward = [
        f"{module} may not import {other}"
        for module, imported in imports.items()
        for other in imported
        if (room := room_of_module(module)) != (target := room_of_module(other))
        and level[target] >= level[room]
        and module not in FACADES
    ]
    assert upward == []


def test_no_two_modules_import_each_other() -> None:
    order = graphlib.TopologicalSorter(imports_of_package())
    order.prepare()  # raises CycleError, which names the circle


MODES = r"is_grad_enabled\(|is_autocast_enabled\(|get_autocast_dtype\(|TracingContext\b"

MAY_ASK_MODES = {"capture_context.py", "training_semantics.py"}
"""The first hands on what it read; the second watches forward run, which changes modes."""


def test_lowering_asks_no_modes() -> None:
    """A graph is made under one ``CaptureContext``: what else it asked would be a hidden input."""
    files = [f for f in tracked_files() if f.is_relative_to(PACKAGE / "lowering")]
    assert {f.name for f in files if re.search(MODES, f.read_text())} == MAY_ASK_MODES


INTERNALS = PACKAGE / "torch_internals"

ORIGINALS = {
    "dynamo/patches/extra_tracing.py: SetAttrBuiltinVariable._call_setattr",
    "dynamo/patches/extra_tracing.py: UserDefinedClassVariable._call_cross_entropy_loss",
    "lowering/exact_constants.py: building._get_or_create_constant",
}
"""Private names of PyTorch outside of INTERNALS: what a Substitution, which names it, replaces."""


def is_private(parts: list[str]) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in parts)


def dotted(node: ast.expr) -> list[str]:
    """The parts of ``a.b.c``; none where it begins with anything but a name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def private_names_of_torch(file: Path) -> set[str]:
    """What a module uses of PyTorch that is private, or an operator of ``torch.ops.aten``."""
    tree = ast.parse(file.read_text())
    found, of_torch = set(), {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if "torch_internals" in parts:
                of_torch |= {n.asname or n.name for n in node.names} - {"aten"}  # its operators
            elif parts[0] == "torch":
                of_torch |= {n.asname or n.name for n in node.names}
                names = [[*parts, n.name] for n in node.names]
                found |= {".".join(name) for name in names if is_private(name)}
        elif isinstance(node, ast.Import):
            of_torch |= {n.asname for n in node.names if n.asname and n.name.startswith("torch.")}
            names = [n.name.split(".") for n in node.names if n.name.startswith("torch")]
            found |= {".".join(name) for name in names if is_private(name)}
    for node in ast.walk(tree):
        parts = dotted(node) if isinstance(node, ast.Attribute) else []
        private = is_private(parts[1:]) or parts[:3] == ["torch", "ops", "aten"]
        if private and parts[0] in of_torch:
            found.add(".".join(parts))
    return found


OTHERS_PRIVATE = {
    "backends.py: registry._BACKENDS": "it is asked for only if PyTorch is loaded, and may be gone",
    "compat/data/data_schema.py: kind._make": "of named tuples, documented",
    "lowering/fingerprint.py: hashlib._Hash": "of Python, for annotations",
    "compat/trainer/described_trainer.py: self.options._internal_use": "an option has this name",
    "lowering/ops/resize.py: nn._aten_upsample_output_size": "of onnxscript",
    "module/ort_module.py: super()._call_impl": "ORTModule is an nn.Module, and overrides it",
    "module/ort_module.py: self._steep_module._apply": "as above",
    "module/ort_module.py: self._steep_module._load_from_state_dict": "as above",
}
"""Private attributes of others that stand outside of INTERNALS, and why."""


def attributes(file: Path) -> set[tuple[str, str]]:
    """The private attributes that a module reads or writes: what has them, and their names."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute):
            found.add((ast.unparse(node.value), node.attr))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME and node.args[1:]:
            of, name = node.args[:2]
            if isinstance(name, ast.Constant):
                found.add((ast.unparse(of), str(name.value)))
    return {(of, name) for of, name in found if is_private([name])}


BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}


def own_names(file: Path) -> set[str]:
    """The names that a module gives: classes, functions, attributes of ``self``, keywords."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value) in {"self", "cls"}:
                found.add(node.attr)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            found.add(str(node.slice.value))  # of vars(self)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
    return found


def private_names_of_classes() -> set[str]:
    """What PyTorch's objects have and do not offer; ours may have attributes of these names."""
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter])
    graph, operator = torch.fx.Graph(), torch.ops.aten.add.Tensor
    objects = [parameter, parameter.untyped_storage(), parameter.sin().grad_fn, optimizer, graph]
    objects += [operator, torch.nn.Module(), torch.nn.parallel.DistributedDataParallel]
    return {name for each in objects for name in dir(each) if is_private([name])}


def test_private_attributes_of_others_stand_in_one_room() -> None:
    """An attribute is another's if no module of the package gives it, or a class of PyTorch has it.

    ``self`` may have attributes of such names; ``aten`` has operators.
    """
    modules = [f for f in tracked_files() if f.is_relative_to(PACKAGE) and f.suffix == ".py"]
    own = set().union(*map(own_names, modules))
    theirs = private_names_of_classes()
    assert {"_version", "_backward_hooks", "_cdata", "_schema", "_parameters"} <= theirs
    found = {
        f"{f.relative_to(PACKAGE)}: {of}.{name}"
        for f in modules
        if f.parent != INTERNALS
        for of, name in attributes(f)
        if of not in {"aten", "self", "cls"} and (name not in own or name in theirs)
    }
    found |= {
        f"{f.relative_to(PACKAGE)}: self.{name}"
        for f in modules
        for of, name in attributes(f)
        if of == "self" and name not in own
    }
    assert found - ORIGINALS == OTHERS_PRIVATE.keys()


def test_private_names_of_torch_stand_in_one_room() -> None:
    """Another release of PyTorch is one place to look at, with ``patching/torch_versions.py``."""
    modules = [f for f in tracked_files() if f.is_relative_to(PACKAGE) and f.suffix == ".py"]
    inside = [f for f in modules if f.parent == INTERNALS]
    assert sum(len(private_names_of_torch(f)) for f in inside) > 100
    found = {
        f"{f.relative_to(PACKAGE)}: {name}"
        for f in modules
        if f.parent != INTERNALS
        for name in private_names_of_torch(f)
    }
    assert found == ORIGINALS


TESTS = ROOT / "tests" / "python"


def python_tests() -> list[Path]:
    """What pytest collects in TESTS."""
    found = [f for f in tracked_files() if f.is_relative_to(TESTS) and f.match("test_*.py")]
    assert len(found) > 50
    return found


def folders_without_a_room() -> set[str]:
    """Folders of tests that CONTRIBUTING.md lists beside those that mirror the package."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where a test belongs")[2]
    table = text.partition("\n## ")[0]
    return set(re.findall(r"^\| `tests/python/(\w+)` \|", table, re.M))


def test_tests_lie_where_what_they_test_lies() -> None:
    rooms_of_package = rooms("python/steep/README.md", "Who may import whom").keys()
    folders = {str(f.relative_to(TESTS).parent) for f in python_tests()}
    others = folders_without_a_room()
    assert others and others.isdisjoint(rooms_of_package)
    assert folders - rooms_of_package - others == set()
    assert {f for f in others if not (TESTS / f).is_dir()} == set()


def test_what_tests_share_lies_in_support() -> None:
    """Test modules are imported by pytest alone, in children of a test too but for the test's own.

    Two modules of one name would hide each other: folders of tests are no packages.
    """
    files = [f for f in tracked_files() if f.is_relative_to(TESTS) and f.suffix == ".py"]
    collected = set(python_tests())
    shared = [f.relative_to(TESTS) for f in files if f not in collected]
    assert {str(f) for f in shared if f.parent.name != "support"} == {"conftest.py"}
    names = [f.stem for f in (*collected, *shared)]
    assert {name for name in names if names.count(name) > 1} == set()
    found = []
    for file in files:
        for line in re.findall(r"^\s*(?:from|import) .*$", file.read_text(), re.M):
            named = set(re.findall(r"\btest_\w+", line)) & set(names) - {file.stem}
            found += [f"{file.relative_to(TESTS)}: {name}" for name in sorted(named)]
    assert found == []


def test_program_is_a_facade() -> None:
    assert len((ROOT / "src" / "program" / "program.cc").read_text().splitlines()) <= 150


# The engine fills in what an OpDef declares: a kernel that names a default says it once more. Where
# an attribute's absence means something, there is none to declare.
MEAN_SOMETHING_ABSENT = {("Shape", "end"), ("LSTM and the like", "hidden_size")}


def test_kernels_name_no_defaults() -> None:
    known = {name for _, name in MEAN_SOMETHING_ABSENT}
    found = []
    for folder in (ROOT / "providers", ROOT / "examples" / "provider"):
        for file in sorted([*folder.rglob("*.cc"), *folder.rglob("*.h")]):
            read = re.findall(r'\.(?:integer|real|string)\(\s*"(\w+)",', file.read_text())
            found += [f"{file.name}: {name}" for name in read if name not in known]
    assert found == []


def test_a_number_and_its_noun_agree() -> None:
    plural = re.compile(r'fmt::format\(\s*"\{\} [a-z]+s"|\{\} (?:inputs|outputs)\b')
    found = [
        f"{file.name}: {match}"
        for file in sorted((ROOT / "src").rglob("*.cc"))
        for match in plural.findall(file.read_text())
    ]
    assert found == [], "counted() writes the noun"


def test_every_page_says_whom_it_is_for():
    others = [
        *(
            ROOT / folder / "README.md"
            for folder in ("src", "python/steep", "examples/huggingface")
        ),
        *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    ]
    for page in [*(ROOT / "docs").rglob("*.md"), *others]:
        title, empty, whom = page.read_text().split("\n")[:3]
        assert title.startswith("# ") and empty == "" and whom.startswith("For "), page


def test_the_changelog_has_the_version() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == "Unreleased"
    dated = [re.fullmatch(r"([\d.]+) \(\d{4}-\d\d-\d\d\)", heading) for heading in headings[1:]]
    versions = [found[1] for found in dated if found]
    assert len(versions) == len(dated)
    assert versions[0] == steep.__version__
