"""What trains alone refuses to be one of several processes, and says what to do."""

import numpy as np
import onnx.parser
import pytest

import steep
from steep.session.processes import ALONE, find_launcher

MODEL = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[n,2] x) => (float[n,1] y) <float[2,1] w = {0.5, -0.25}> { y = MatMul(x, w) }""")

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("environ", "refused"),
    [
        (TORCHRUN, "torchrun"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}, "Open MPI"),
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, "MPICH"),
        ({"MV2_COMM_WORLD_SIZE": "2"}, "MVAPICH"),
        ({"FLUX_JOB_SIZE": "2", "FLUX_TASK_RANK": "0"}, "Flux"),
        ({"JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_RANK": "0"}, "jsrun"),
        ({"HOROVOD_SIZE": "2", "HOROVOD_RANK": "1"}, "Horovod"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "ENVIRONMENT": "BATCH"}, "srun"),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1"}, "srun"),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, ""),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "ENVIRONMENT": "BATCH"}, ""),  # a job's script
        ({"SLURM_NTASKS": "4"}, ""),  # a shell within an allocation
        ({"STEEP_SIZE": "2", "STEEP_RANK": "1"}, "steep launch"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ""),
        ({"WORLD_SIZE": "2"}, ""),  # of nobody who also gave a rank
        ({"RANK": "0", "WORLD_SIZE": "two"}, ""),
        ({}, ""),
    ],
)
def test_launchers_are_known_by_their_variables(environ, refused):
    said = find_launcher(environ)
    assert (refused in said) if refused else not said


def doors():
    torch = pytest.importorskip("torch")
    from steep.compat.optim import configs as optimizer_configs
    from steep.compat.trainer import described_trainer
    from steep.trainers.ort_trainer import IODescription, ModelDescription, ORTTrainer

    net, loss = torch.nn.Linear(2, 1), torch.nn.MSELoss()
    x, y = IODescription("x", ["n", 2]), IODescription("y", ["n", 1])
    yield lambda: steep.TrainingSession(MODEL, loss="mse")
    yield lambda: steep.trainer(net, loss, torch.optim.SGD(net.parameters(), lr=0.1))
    described = ModelDescription([x, y], [IODescription("loss", [1]), y])
    rate = IODescription("lr", [1])
    yield lambda: ORTTrainer(net, loss, described, "SGDOptimizer", None, rate)
    names = {"inputs": [("x", ["n", 2]), ("y", ["n", 1])], "outputs": [("loss", [], True)]}
    config = optimizer_configs.SGDConfig()
    yield lambda: described_trainer.ORTTrainer(net, names, config, loss)


def test_each_door_refuses_and_says_what_to_do(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    for door in doors():
        with pytest.raises(steep.ProviderError) as raised:
            door()
        assert "WORLD_SIZE=2" in raised.value.received
        assert "DistributedDataParallel(steep.ORTModule" in raised.value.remedy
        assert 'parallel="torch"' in raised.value.remedy
        assert ALONE in raised.value.remedy
    monkeypatch.setenv(ALONE, "1")
    for door in doors():
        door()


def test_what_is_divided_or_does_not_train_goes_on(monkeypatch):
    torch = pytest.importorskip("torch")
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    x = np.ones((3, 2), np.float32)
    np.testing.assert_allclose(steep.InferenceSession(MODEL).run(None, {"x": x})[0], 0.25)
    steep.grad(MODEL, wrt=["w"])
    from steep.compat.optim.fused_adam import FusedAdam

    net = torch.nn.Linear(2, 1)
    before = net.weight.detach().clone()
    optimizer = FusedAdam(net.parameters(), lr=0.1)
    steep.ORTModule(net)(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(net.weight, before)


def test_a_process_group_of_several_is_seen(monkeypatch):
    distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    with pytest.raises(steep.ProviderError, match="process group of 2"):
        steep.TrainingSession(MODEL, loss="mse")
