"""onnxruntime.training._utils: what scripts of ORTTrainer import from it."""

import sys

import numpy as np
import pytest

import steep
from steep.compat.data import script_names

torch = pytest.importorskip("torch")


def test_devices():
    assert script_names.get_device_index("cpu") == 0
    assert script_names.get_device_index(torch.device("cuda:3")) == 3
    assert script_names.get_device_index_from_input(torch.ones(1)) == 0
    assert script_names.get_device_index_from_input([torch.ones(1)]) == 0


def test_dtypes():
    for dtype in (torch.float32, torch.float64, torch.float16, torch.int64, torch.bool):
        assert script_names.dtype_torch_to_numpy(dtype) == torch.ones(1, dtype=dtype).numpy().dtype
    assert script_names.dtype_torch_to_numpy(torch.bfloat16) == np.float16
    assert script_names.dtype_onnx_to_torch(1) == torch.float32
    assert script_names.dtype_onnx_to_torch("bfloat16") == torch.bfloat16
    for wrong in ("float33", 8, "STRING"):
        with pytest.raises(steep.DataError, match="no such type"):
            script_names.dtype_onnx_to_torch(wrong)
    with pytest.raises(steep.DataError, match="no such type"):
        script_names.dtype_torch_to_numpy(torch.qint8)


def test_static_vars():
    @script_names.static_vars(counter=3)
    def count():
        count.counter += 1
        return count.counter

    assert [count(), count()] == [4, 5]


def test_a_file_becomes_a_module(tmp_path):
    (tmp_path / "of_a_script.py").write_text("VALUE = 7")
    module = script_names.import_module_from_file(str(tmp_path / "of_a_script.py"))
    try:
        assert module.VALUE == 7 and sys.modules["of_a_script"] is module
    finally:
        del sys.modules["of_a_script"]
    for missing in ("none.py", "none"):
        with pytest.raises(steep.IoError, match="no such Python file"):
            script_names.import_module_from_file(str(tmp_path / missing))


def test_keys_are_those_of_a_trainer():
    from steep.compat.optim.configs import SGDConfig
    from steep.compat.trainer.described_trainer import ORTTrainer

    description = {"inputs": [("x", ["n", 2])], "outputs": [("loss", [], True)]}

    class Net(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).mean()

    trainer = ORTTrainer(Net(2, 1), description, SGDConfig())
    keys = {script_names.state_dict_model_key(), script_names.state_dict_optimizer_key()}
    assert keys < trainer.state_dict().keys()
