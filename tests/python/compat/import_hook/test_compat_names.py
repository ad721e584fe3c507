"""Under steep.compat, every name of ONNX Runtime Training is ours, or says what to do."""

import importlib
import re
import subprocess
import sys

import pytest
from checkout import ROOT
from names_of_onnxruntime_training import MEMBERS, NAMES

import steep
from steep import compat
from steep.compat.import_hook import names

pytest.importorskip("torch")

PATH = str(ROOT / "python")


@pytest.fixture(autouse=True)
def served():
    compat.install()
    yield
    compat.uninstall()


@pytest.mark.parametrize("module", NAMES)
def test_each_name_is_ours_or_says_what_to_do(module):
    wanted = NAMES[module].split()
    try:
        found = importlib.import_module(module)
    except compat.NotOffered as refusal:
        assert refusal.node == module and refusal.remedy
        return
    assert found.__spec__.origin == "steep.compat"
    for name in wanted:
        try:
            value = getattr(found, name)
        except compat.NotOffered as refusal:
            assert refusal.node == f"{module}.{name}" and refusal.remedy
            assert name not in names.MODULES[module]
            continue
        place = names.MODULES[module].get(name)
        if place is None:
            assert value is importlib.import_module(f"{module}.{name}")
        else:
            assert place.startswith("steep") and value is names.at(place)


def test_the_table_has_no_name_that_is_not_there():
    for module, offered in names.MODULES.items():
        found = importlib.import_module(module)
        assert set(offered) <= set(dir(found))
        for name in offered:
            getattr(found, name)
        assert not set(offered) & set(names.REFUSED.get(module, {}))
    assert set(names.REFUSED) <= set(names.MODULES)


def test_every_name_is_in_the_table_for_readers():
    text = re.sub("```.*?```", "", (ROOT / "docs/migration.md").read_text(), flags=re.DOTALL)
    said = {name for cell in re.findall(r"`([^`]+)`", text) for name in re.findall(r"\w+", cell)}
    of_inference = {"onnxruntime", "onnxruntime.training.ort_triton"}
    wanted = {n for module in set(NAMES) - of_inference for n in NAMES[module].split()}
    missing = (wanted | set(MEMBERS.split())) - said - {"__version__", "loss", "optim"}
    by_ending = ("WarmupLRScheduler", "BatchSampler", "Exception")  # in rows of several
    assert {n for n in missing if not n.endswith(by_ending)} == set()


def test_from_import_says_what_to_do():
    with pytest.raises(compat.NotOffered, match="record_function"):
        from onnxruntime.training.utils import torch_nvtx_range_push  # noqa: F401
    with pytest.raises(ImportError, match="stock"):
        import onnxruntime.transformers  # noqa: F401
    for module in (
        "onnxruntime.never_there",
        "onnxruntime.training.never_there",
        "onnxruntime.capi._pybind_state.never_there",
    ):
        with pytest.raises(compat.NotOffered) as refusal:
            importlib.import_module(module)
        assert not refusal.value.remedy


@pytest.mark.parametrize(
    ("module", "remedy"),
    [
        ("onnxruntime.training.torchdynamo.register_backend.ort", "torch.compile"),
        ("onnxruntime.training.ort_triton.kernel", "ahead of time"),
        ("onnxruntime.quantization.calibrate", "stock"),
        ("onnxruntime.training.model_desc_validation._ORTTrainerModelDesc", "ValueError"),
        ("onnxruntime.training._utils.state_dict_partition_info_key", "state_dict"),
        ("onnxruntime.training._utils.get_all_gradients_finite_name_from_session", "all_finite"),
    ],
)
def test_a_module_of_a_refused_package_says_the_same(module, remedy):
    with pytest.raises(compat.NotOffered, match=remedy):
        importlib.import_module(module)


def test_submodules_are_attributes():
    import onnxruntime.training

    assert (
        onnxruntime.training.optim.lr_scheduler
        is sys.modules["onnxruntime.training.optim.lr_scheduler"]
    )


def test_names_of_old_releases_at_the_top():
    import onnxruntime.training
    from onnxruntime.capi import _pybind_state, training

    for name in ("TrainingParameters", "TrainingSession"):
        assert getattr(onnxruntime, name) is getattr(training, name)
    strategy = onnxruntime.training.PropagateCastOpsStrategy
    assert strategy is _pybind_state.PropagateCastOpsStrategy
    for name in ("SessionIOBinding", "OrtMemType", "set_cuda_device_id", "set_cuda_mem_limit"):
        assert getattr(onnxruntime, name) is getattr(_pybind_state, name)


@pytest.mark.parametrize(
    ("kind", "model", "feed"),
    [
        ("InvalidArgument", "Neg", {"x": [[1.0]]}),
        ("InvalidArgument", "Neg", {"z": [1.0]}),
        ("InvalidGraph", "NeverThere", {}),
        ("Fail", "NeverThere", {}),
        ("InvalidProtobuf", b"none", {}),
        ("NoSuchFile", "nowhere.onnx", {}),
    ],
)
def test_errors_of_the_runtime_are_ours(kind, model, feed):
    import numpy as np
    import onnx
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    if isinstance(model, str) and not model.endswith(".onnx"):
        head = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y)'
        text = f"{head} {{y = {model}(x)}}"
        model = onnx.parser.parse_model(text).SerializeToString()
    with pytest.raises(getattr(state, kind)):
        session = onnxruntime.InferenceSession(model)
        session.run(None, {name: np.float32(value) for name, value in feed.items()})


def test_inference_is_ours():
    import onnxruntime

    assert issubclass(onnxruntime.InferenceSession, steep.InferenceSession)
    assert onnxruntime.get_available_providers()[-1] == "CPUExecutionProvider"
    assert onnxruntime.get_device() == "CPU"


def test_stock_is_the_installed_package():
    from steep.compat import stock

    try:
        version = stock.__getattr__("InferenceSession").__module__
    except compat.NotOffered as refusal:
        assert refusal.remedy == "pip install onnxruntime"
        return
    assert version.startswith("onnxruntime.capi")
    assert "CPUExecutionProvider" in stock.get_available_providers()
    assert stock.quantization.__file__.endswith("quantization/__init__.py")
    with pytest.raises(AttributeError, match="never_there"):
        stock.never_there  # noqa: B018
    import onnxruntime

    assert issubclass(onnxruntime.InferenceSession, steep.InferenceSession)
    with stock.in_place():
        from onnxruntime import InferenceSession

        assert InferenceSession is stock.InferenceSession


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": PATH, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        **options,
    )


def test_a_package_imported_before_stays_with_who_did():
    code = """
try:
    import onnxruntime as before
except ImportError:
    raise SystemExit(0)
from steep import compat
compat.install()
import onnxruntime
from steep.compat import stock
assert onnxruntime is not before and stock.InferenceSession is before.InferenceSession
compat.uninstall()
import onnxruntime
assert onnxruntime is before
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_the_program_runs_scripts(tmp_path):
    (tmp_path / "beside.py").write_text("VALUE = 3\n")
    (tmp_path / "script.py").write_text(
        "import sys, onnxruntime, beside\n"
        "from onnxruntime.training.utils import hooks\n"
        "print(__name__, sys.argv[1:], beside.VALUE, onnxruntime.__version__)\n"
    )
    done = python("-m", "steep.compat", tmp_path / "script.py", "a", "-b")
    assert done.stdout == f"__main__ ['a', '-b'] 3 {names.VERSION}\n", done.stderr
    done = python("-m", "steep.compat", "-m", "torch_ort.configure")
    assert "nothing to configure" in done.stdout
    merging = "onnxruntime.training.utils.hooks.merge_activation_summary"
    done = python("-m", "steep.compat", "-m", merging, "--help")
    assert "--ort_dir" in done.stdout, done.stderr
    assert python("-m", "steep.compat").returncode == 2
    assert "no file" in python("-m", "steep.compat", "missing.py").stderr


def test_the_distribution_serves_them_in_every_process(tmp_path):
    pytest.importorskip("setuptools")
    project = (ROOT / "packaging/steep-compat/pyproject.toml").read_text()
    assert set(re.findall(r'(?:version = "|==)([\d.]+)', project)) == {steep.__version__}
    code = """
import sys, os, zipfile
from setuptools import build_meta
source, target = sys.argv[1:]
os.chdir(source)
name = build_meta.build_wheel(target)
zipfile.ZipFile(os.path.join(target, name)).extractall(target)
"""
    copy = tmp_path / "source"
    copy.mkdir()
    for file in ("pyproject.toml", "setup.py", "steep-compat.pth", "_steep_compat.py"):
        (copy / file).write_text((ROOT / "packaging/steep-compat" / file).read_text())
    built = python("-W", "ignore", "-c", code, copy, tmp_path)
    assert built.returncode == 0, built.stderr
    started = "import site, sys; site.addsitedir(sys.argv[1]); "
    asked = (
        "assert not {'steep', 'torch'} & set(sys.modules); import onnxruntime.training; "
        "assert onnxruntime.__version__ == '" + names.VERSION + "'; "
        "assert all(type(f).__name__ != '_FirstAsked' for f in sys.meta_path)"
    )
    looked = (  # as programs do that may use it: nothing is loaded for it
        "import importlib, importlib.util; assert importlib.util.find_spec('onnxruntime'); "
        "ort = importlib.import_module('onnxruntime'); assert not hasattr(ort, '__wrapped__'); "
        "assert not {'steep', 'torch', 'numpy'} & set(sys.modules); "
        "assert ort.InferenceSession.__module__ == 'steep.compat.inference.session'; "
        "from onnxruntime.training import artifacts; from onnxruntime import NodeArg; "
        "assert ort is sys.modules['onnxruntime'] and ort.training.artifacts is artifacts; "
        "from steep.compat import stock; assert not set(stock.loaded_modules()) & {'onnxruntime'}"
    )
    for script in (asked, looked):
        done = python("-c", started + script, tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", [False, True])
def test_the_distribution_without_steep_has_no_effect(folder, tmp_path):
    """pip uninstalls Steep, and leaves what depends on it; a folder of that name is not Steep."""
    if folder:
        (tmp_path / "steep").mkdir()
    (tmp_path / "onnxruntime.py").write_text("__version__ = 'theirs'\n")
    code = """
import sys
sys.path[:0] = sys.argv[1:]
import _steep_compat
import importlib.util
assert importlib.util.find_spec("torch_ort") is None
import onnxruntime
print(onnxruntime.__version__)
"""
    words = [sys.executable, "-E", "-S", "-c", code, tmp_path, ROOT / "packaging" / "steep-compat"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "theirs\n", done.stderr
