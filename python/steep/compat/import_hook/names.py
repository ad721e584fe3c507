"""Every name of ONNX Runtime Training, by its module: where Steep has it, or what to do instead.

The names come from release 1.19, the last with training; those of ``ORTTrainer`` from 1.6 to 1.16.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

VERSION = "1.19.2"  # the release that had these names


def at(place: str) -> object:
    """Return the object at "module:name", or the module "module"."""
    module, _, name = place.partition(":")
    owner = importlib.import_module(module)
    return getattr(owner, name) if name else owner


def _of(module: str, *names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names}


_COMPAT = "steep.compat"
_MODULE = _of(f"{_COMPAT}.ortmodule.ort_module", "ORTModule")
_DEBUG = _of(f"{_COMPAT}.ortmodule.debug_options", "DebugOptions", "LogLevel")
_FUSED = _of(f"{_COMPAT}.optim.fused_adam", "FusedAdam", "AdamWMode")
_FP16 = _of(f"{_COMPAT}.optim.fp16_optimizer", "FP16_Optimizer")
_CONFIGS = _of(f"{_COMPAT}.optim.configs", "SGDConfig", "AdamConfig", "LambConfig")
_SCHEDULERS = _of(
    f"{_COMPAT}.optim.schedulers",
    "ConstantWarmupLRScheduler",
    "CosineWarmupLRScheduler",
    "LinearWarmupLRScheduler",
    "PolyWarmupLRScheduler",
)
_SCALERS = _of(f"{_COMPAT}.optim.loss_scalers", "LossScaler", "DynamicLossScaler")
_POLICY = _of(f"{_COMPAT}.ortmodule.fallback", "_FallbackPolicy")
_SKIP_CHECK = _of(f"{_COMPAT}.ortmodule.fallback", "_SkipCheck")
_EXCEPTIONS = _of(
    f"{_COMPAT}.ortmodule.fallback",
    "ORTModuleFallbackException",
    "ORTModuleInitException",
    "ORTModuleDeviceException",
    "ORTModuleTorchModelException",
    "ORTModuleONNXModelException",
    "ORTModuleIOError",
    "wrap_exception",
)
_CONSTANTS = _of(
    f"{_COMPAT}.ortmodule.ort_module",
    "ONNX_OPSET_VERSION",
    "MINIMUM_RUNTIME_PYTORCH_VERSION_STR",
    "ORTMODULE_FALLBACK_POLICY",
    "ORTMODULE_FALLBACK_RETRY",
    "ORTMODULE_IS_DETERMINISTIC",
    "ORTMODULE_TORCH_CPP_DIR",
)
_HIERARCHICAL = _of(f"{_COMPAT}.ortmodule.ort_module", "HierarchicalORTModule")
_REWRITES = _of(f"{_COMPAT}.ortmodule.graph_optimizers", "register_graph_optimizer")
_JSON = _of(f"{_COMPAT}.ortmodule.json_config", "load_from_json")
_TRAINER = _of(f"{_COMPAT}.trainer.described_trainer", "ORTTrainer", "TrainStepInfo")
_OPTIONS = _of(f"{_COMPAT}.trainer.options", "ORTTrainerOptions")
_HOOKS = _of(
    f"{_COMPAT}.hooks.subscribers",
    "GlobalSubscriberManager",
    "SubscriberManager",
    "SubscriberBase",
    "StatisticsSubscriber",
    "configure_ort_compatible_zero_stage3",
    "inspect_activation",
)
_SAMPLERS = _of(
    f"{_COMPAT}.data.samplers",
    "LoadBalancingDistributedSampler",
    "LoadBalancingDistributedBatchSampler",
)
_OLDEST = {
    **_of("steep", "ORTTrainer", "IODescription", "ModelDescription"),
    **_of(f"{_COMPAT}.optim.loss_scalers", "LossScaler"),
}
_STATE = _of(
    f"{_COMPAT}.on_device.training_state",
    "CheckpointState",
    "Parameter",
    "Parameters",
    "Properties",
)
_ON_DEVICE = _of(f"{_COMPAT}.on_device.training_module", "Module")
_STEPS = _of(f"{_COMPAT}.on_device.training_optimizer", "Optimizer", "LinearLRScheduler")
_BLOCKS = _of(f"{_COMPAT}.onnxblock.base", "Block")
_BASES = _of(f"{_COMPAT}.onnxblock.base", "base", "custom_op_library", "empty_base")
_SAVED = _of(f"{_COMPAT}.onnxblock.checkpoints", "load_checkpoint_to_model", "save_checkpoint")
_WHOLE = _of(f"{_COMPAT}.onnxblock.models", "ForwardBlock", "TrainingBlock")
_LOSSES = _of(
    f"{_COMPAT}.onnxblock.losses", "BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss"
)
_UPDATES = _of(f"{_COMPAT}.onnxblock.optimizers", "AdamW", "ClipGradNorm", "SGD")
_SCHEMAS = _of(
    f"{_COMPAT}.data.data_schema",
    "ORTModelInputOutputSchemaType",
    "ORTModelInputOutputType",
    "PrimitiveType",
    "extract_data_and_schema",
    "unflatten_data_using_schema",
)
_TYPES = _of(
    f"{_COMPAT}.data.type_names",
    "onnx_dtype_to_pytorch_dtype",
    "pytorch_scalar_type_to_pytorch_dtype",
    "pytorch_type_to_onnx_dtype",
)
_VALUES = {
    **_of(f"{_COMPAT}.inference.ort_value", "OrtValue", "OrtValueVector"),
    **_of(f"{_COMPAT}.inference.ort_device", "OrtDevice", "OrtMemType"),
    **_of(f"{_COMPAT}.inference.session", "RunOptions", "SessionIOBinding"),
}
_INFERENCE = {
    **_of(f"{_COMPAT}.inference.session", "IOBinding", "InferenceSession", "RunOptions"),
    "OrtValue": f"{_COMPAT}.inference.ort_value:PythonOrtValue",
    **_of(f"{_COMPAT}.inference.ort_device", "OrtDevice"),
}
_SESSION_OPTIONS = _of(
    f"{_COMPAT}.inference.session_options", "ExecutionMode", "ExecutionOrder", "SessionOptions"
)
_PROVIDERS = {
    **_of("steep", "get_available_providers"),
    "get_all_providers": "steep:get_available_providers",
}
_OLD_SESSION = _of(f"{_COMPAT}.agent.training_session", "TrainingParameters", "TrainingSession")
_ERRORS = {
    **dict.fromkeys(["InvalidGraph", "InvalidProtobuf", "NotImplemented"], "steep:ModelError"),
    "NoSuchFile": "steep:IoError",
    **dict.fromkeys(
        ["EPFail", "EngineError", "Fail", "InvalidArgument", "ModelLoaded", "NoModel"],
        "steep:Error",
    ),
    "RuntimeException": "steep:Error",
}
_ARENA = _of(
    f"{_COMPAT}.ortmodule.settings",
    "ArenaExtendStrategy",
    "set_arena_extend_strategy",
    "set_cuda_device_id",
    "set_cuda_mem_limit",
)
_AGENT = {
    **_VALUES,
    **_PROVIDERS,
    **_of(
        f"{_COMPAT}.agent.graph_builder",
        "GradientGraphBuilder",
        "GraphInfo",
        "OrtModuleGraphBuilder",
    ),
    **_of(
        f"{_COMPAT}.agent.settings",
        "GradientGraphConfiguration",
        "OrtModuleGraphBuilderConfiguration",
        "PropagateCastOpsConfiguration",
        "PropagateCastOpsStrategy",
        "Severity",
        "TrainingGraphTransformerConfiguration",
    ),
    **_of(
        f"{_COMPAT}.agent.training_agent",
        "OrtValueCache",
        "PartialGraphExecutionState",
        "TrainingAgent",
    ),
    **_OLD_SESSION,
    **_ARENA,
    **_ERRORS,
    **_of(f"{_COMPAT}.ortmodule.settings", "get_device", "set_default_logger_severity", "set_seed"),
    **_of("steep", "GraphOptimizationLevel"),
    **_SESSION_OPTIONS,
    **_of(f"{_COMPAT}.inference.session", "InferenceSession"),
}
_AGENTS = _of(
    f"{_COMPAT}.agent.execution_agent", "ExecutionAgentOutput", "InferenceAgent", "TrainingAgent"
)
_FOR_SCRIPTS = _of(
    f"{_COMPAT}.data.script_names",
    "dtype_onnx_to_torch",
    "dtype_torch_to_numpy",
    "get_device_index",
    "get_device_index_from_input",
    "import_module_from_file",
    "state_dict_model_key",
    "state_dict_optimizer_key",
    "static_vars",
)
_INSTALL = f"{_COMPAT}.import_hook.nothing_to_install:main"

MODULES: dict[str, dict[str, str]] = {
    "onnxruntime": {
        **_of("steep", "GraphOptimizationLevel", "NodeArg"),
        **_SESSION_OPTIONS,
        **_INFERENCE,
        **_PROVIDERS,
        **_of(
            f"{_COMPAT}.ortmodule.settings", "get_device", "set_seed", "set_default_logger_severity"
        ),
        **_of("steep._steep", "ModelMetadata"),
        # the names of training up to release 1.12
        **_OLD_SESSION,
        **_of(f"{_COMPAT}.inference.session", "SessionIOBinding"),
        **_of(f"{_COMPAT}.inference.ort_device", "OrtMemType"),
        **{name: place for name, place in _ARENA.items() if name.startswith("set_cuda")},
        "__version__": f"{_COMPAT}.import_hook.names:VERSION",
    },
    "onnxruntime.training": {
        **_MODULE,
        **_DEBUG,
        **_TRAINER,
        **_OPTIONS,
        **_REWRITES,
        **_OLD_SESSION,
        **_of(f"{_COMPAT}.agent.settings", "PropagateCastOpsStrategy"),
    },
    "onnxruntime.training._utils": _FOR_SCRIPTS,
    "onnxruntime.training.model_desc_validation": {},
    "onnxruntime.training.pytorch": _of("steep", "trainer"),
    "onnxruntime.training.ortmodule": {
        **_MODULE,
        **_DEBUG,
        **_CONSTANTS,
        **_EXCEPTIONS,
        **_POLICY,
        **_REWRITES,
    },
    "onnxruntime.training.ortmodule.ortmodule": _MODULE,
    "onnxruntime.training.ortmodule.options": {**_DEBUG, **_SKIP_CHECK},
    "onnxruntime.training.ortmodule.debug_options": _DEBUG,
    "onnxruntime.training.ortmodule._execution_agent": _AGENTS,
    "onnxruntime.training.ortmodule._fallback": {**_POLICY, **_EXCEPTIONS},
    "onnxruntime.training.ortmodule._fallback_exceptions": _EXCEPTIONS,
    "onnxruntime.training.ortmodule._custom_autograd_function": _of(
        f"{_COMPAT}.ortmodule.settings",
        "enable_custom_autograd_support",
        "custom_autograd_function_enabler",
    ),
    "onnxruntime.training.ortmodule.graph_optimizers": {},
    "onnxruntime.training.ortmodule.graph_optimizer_registry": _REWRITES,
    "onnxruntime.training.ortmodule.experimental": {},
    "onnxruntime.training.ortmodule.experimental.json_config": _JSON,
    "onnxruntime.training.ortmodule.experimental.hierarchical_ortmodule": _HIERARCHICAL,
    "onnxruntime.training.ortmodule.torch_cpp_extensions": {},
    "onnxruntime.training.experimental": _of(
        f"{_COMPAT}.ortmodule.gradient_graph", "export_gradient_graph"
    ),
    "onnxruntime.training.optim": {
        **_FUSED,
        **_FP16,
        **_CONFIGS,
        **_SCHEDULERS,
        **_of(f"{_COMPAT}.optim.configs", "_OptimizerConfig"),
        **_of(f"{_COMPAT}.optim.schedulers", "_LRScheduler"),
    },
    "onnxruntime.training.optim.fused_adam": _FUSED,
    "onnxruntime.training.optim.fp16_optimizer": _FP16,
    "onnxruntime.training.optim.config": {
        **_CONFIGS,
        **_of(f"{_COMPAT}.optim.configs", "_OptimizerConfig"),
    },
    "onnxruntime.training.optim.lr_scheduler": {
        **_SCHEDULERS,
        **_of(f"{_COMPAT}.optim.schedulers", "_LRScheduler"),
    },
    "onnxruntime.training.amp": _SCALERS,
    "onnxruntime.training.amp.loss_scaler": _SCALERS,
    "onnxruntime.training.orttrainer": {**_TRAINER, **_OPTIONS},
    "onnxruntime.training.orttrainer_options": _OPTIONS,
    "onnxruntime.training.checkpoint": _of(
        f"{_COMPAT}.trainer.checkpoints",
        "aggregate_checkpoints",
        "experimental_load_checkpoint",
        "experimental_load_state_dict",
        "experimental_save_checkpoint",
        "experimental_state_dict",
    ),
    "onnxruntime.training.utils": {
        **_SCHEMAS,
        **_TYPES,
        **_of(f"{_COMPAT}.hooks.subscribers", "configure_ort_compatible_zero_stage3"),
    },
    "onnxruntime.training.utils.torch_io_helper": {
        **_SCHEMAS,
        "_TensorStub": f"{_COMPAT}.data.data_schema:TensorStub",
    },
    "onnxruntime.training.utils.torch_type_map": _TYPES,
    "onnxruntime.training.utils.hooks": _HOOKS,
    "onnxruntime.training.utils.data": _SAMPLERS,
    "onnxruntime.training.utils.data.sampler": _SAMPLERS,
    "onnxruntime.training.api": {
        **_of(f"{_COMPAT}.on_device.training_state", "CheckpointState"),
        **_ON_DEVICE,
        **_STEPS,
    },
    "onnxruntime.training.api.checkpoint_state": _STATE,
    "onnxruntime.training.api.module": _ON_DEVICE,
    "onnxruntime.training.api.optimizer": {"Optimizer": _STEPS["Optimizer"]},
    "onnxruntime.training.api.lr_scheduler": {"LinearLRScheduler": _STEPS["LinearLRScheduler"]},
    "onnxruntime.training.artifacts": _of(
        f"{_COMPAT}.onnxblock.artifacts",
        "LossType",
        "OptimType",
        "OptimizationStyle",
        "generate_artifacts",
    ),
    # release 1.5 had the ORTTrainer of onnxruntime.training here
    "onnxruntime.experimental": {**_TRAINER, **_OPTIONS},
    "onnxruntime.experimental.orttrainer": {**_TRAINER, **_OPTIONS},
    "onnxruntime.experimental.orttrainer_options": _OPTIONS,
    "onnxruntime.experimental.optim": {**_CONFIGS, **_SCHEDULERS},
    "onnxruntime.experimental.amp": _SCALERS,
    "onnxruntime.tools": {},
    "onnxruntime.tools.convert_onnx_models_to_ort": _of(
        f"{_COMPAT}.onnxblock.artifacts", "OptimizationStyle"
    ),
    "onnxruntime.training.onnxblock": {**_BLOCKS, **_WHOLE, **_BASES, **_SAVED},
    "onnxruntime.training.onnxblock.model_accessor": {
        **_BASES,
        **_of(f"{_COMPAT}.onnxblock.base", "ModelAccessor"),
    },
    "onnxruntime.training.onnxblock.checkpoint_utils": _SAVED,
    "onnxruntime.training.onnxblock.onnxblock": _WHOLE,
    "onnxruntime.training.onnxblock.blocks": {
        **_BLOCKS,
        **_of(
            f"{_COMPAT}.onnxblock.blocks",
            "Abs",
            "Add",
            "Cast",
            "Clip",
            "Constant",
            "Div",
            "InputLike",
            "LabelEncoder",
            "Linear",
            "Log",
            "Mul",
            "Neg",
            "PassThrough",
            "Pow",
            "ReduceAllL2",
            "ReduceMean",
            "ReduceSum",
            "SequenceConstruct",
            "Sigmoid",
            "Sub",
        ),
    },
    "onnxruntime.training.onnxblock.loss": _LOSSES,
    "onnxruntime.training.onnxblock.loss.loss": _LOSSES,
    "onnxruntime.training.onnxblock.optim": _UPDATES,
    "onnxruntime.training.onnxblock.optim.optim": _UPDATES,
    "onnxruntime.training.torchdynamo": {},
    "onnxruntime.training.torchdynamo.register_backend": {},
    "onnxruntime.capi": {},
    "onnxruntime.capi._pybind_state": _AGENT,
    "onnxruntime.capi.onnxruntime_pybind11_state": _AGENT,
    "onnxruntime.capi.onnxruntime_inference_collection": {
        **_INFERENCE,
        **_of("steep", "GraphOptimizationLevel", "NodeArg"),
        **_SESSION_OPTIONS,
    },
    "onnxruntime.capi.training": {**_OLDEST, **_OLD_SESSION},
    "onnxruntime.capi.ort_trainer": _OLDEST,
    "onnxruntime.capi.training.training_session": _of(
        f"{_COMPAT}.agent.training_session", "TrainingSession"
    ),
    "onnxruntime.capi.training.ort_trainer": _OLDEST,
    "torch_ort": {
        **_MODULE,
        **_DEBUG,
        **_of(f"{_COMPAT}.ortmodule.settings", "set_seed"),
        "__version__": f"{_COMPAT}.import_hook.names:VERSION",
    },
    "torch_ort.optim": {**_FUSED, **_FP16},
    "torch_ort.utils": {},
    "torch_ort.utils.data": _SAMPLERS,
    "torch_ort.experimental": {},
    "torch_ort.experimental.json_config": _JSON,
    "torch_ort.experimental.graph_config": _of(
        f"{_COMPAT}.ortmodule.settings", "set_propagate_cast_ops_optimization"
    ),
    "torch_ort.configure": {},
}
"""By module, its names, and where Steep has each: "module:name"."""

RUN = {
    "torch_ort.configure.__main__": _INSTALL,
    "onnxruntime.training.ortmodule.torch_cpp_extensions.install": _INSTALL,
    "onnxruntime.training.utils.hooks.merge_activation_summary": (
        f"{_COMPAT}.hooks.merge_activation_summary:main"
    ),
}
"""By module that ``python -m`` runs, the function that does it."""


def _explain_all(names: Iterable[str], remedy: str) -> dict[str, str]:
    return dict.fromkeys(names, remedy)


_STOCK = "steep.compat.stock has it, where an onnxruntime is installed"
_OWN = "steep.register_op(function, gradient=…) (docs/your_own.md)"
_NODES = _explain_all(
    ["AdamWOptimizer", "SGDOptimizer"],
    "onnxblock.optim.AdamW and SGD spell a step in ONNX's own operators",
)

_PYBIND = {
    **_explain_all(["get_optimized_model"], "steep.TrainingSession.dump() shows the compiled step"),
    **_explain_all(["GradientNodeDefinition", "GradientNodeAttributeDefinition"], _OWN),
    **_explain_all(["register_gradient_definition", "register_custom_stop_gradient_edges"], _OWN),
    **_explain_all(["register_shape_inference_function", "register_input_alias_function"], _OWN),
    **_explain_all(["register_aten_op_executor", "register_miscellaneous_const_input"], _OWN),
    **_explain_all(
        ["register_forward_runner", "register_backward_runner", "register_torch_autograd_function"],
        "a torch.autograd.Function in a module is captured as it is",
    ),
    **_explain_all(["unregister_python_functions", "clear_training_ep_instances"], "nothing to do"),
    **_explain_all(
        ["save_checkpoint", "load_checkpoint", "get_model_after_loading_checkpoint"],
        "TrainingSession.save_checkpoint, load_checkpoint and export_onnx",
    ),
    **_explain_all(
        ["is_ortmodule_available", "is_triton_enabled", "is_torch_interop_default_on"],
        "remove the check: ORTModule needs only PyTorch",
    ),
    **_explain_all(["is_dlpack_uint8_tensor"], "steep.Tensor.dtype"),
}

REFUSED: dict[str, dict[str, str]] = {
    "onnxruntime": {
        **_explain_all(["SparseTensor", "OrtMemoryInfo"], _STOCK),
        **_explain_all(["OrtAllocatorType"], _STOCK),
        **_explain_all(["AdapterFormat", "LoraAdapter", "preload_dlls", "get_build_info"], _STOCK),
        **_explain_all(["quantization", "transformers", "backend", "datasets"], _STOCK),
        **_explain_all(["enable_telemetry_events", "disable_telemetry_events"], _STOCK),
        **_explain_all(["OrtArenaCfg", "create_and_register_allocator"], _STOCK),
        **_explain_all(["set_default_logger_verbosity"], 'logging.getLogger("steep")'),
        **_explain_all(
            ["is_ortmodule_available"], "remove the check: ORTModule needs only PyTorch"
        ),
    },
    "onnxruntime.tools.convert_onnx_models_to_ort": _explain_all(
        ["convert_onnx_models_to_ort"], "nothing to convert: files are ONNX models"
    ),
    "onnxruntime.training._utils": {
        **_explain_all(["timeit"], "time.perf_counter()"),
        **_explain_all(
            [
                "state_dict_full_precision_key",
                "state_dict_partition_info_key",
                "state_dict_trainer_options_key",
            ],
            'trainer.state_dict() has "model", "optimizer", "train_step_info" and "loss_scale"',
        ),
        **_explain_all(
            ["get_all_gradients_finite_name_from_session"],
            "the TrainStepInfo that a loss scaler's update(info) is given: its all_finite",
        ),
        **_explain_all(
            ["get_gradient_accumulation_name_from_session"],
            "none: the option batch.gradient_accumulation_steps accumulates without a node",
        ),
    },
    "onnxruntime.training.model_desc_validation": _explain_all(
        ["_ORTTrainerModelDesc", "MODEL_DESC_SCHEMA"],
        "ORTTrainer(model, model_desc, …) checks the dict itself; a steep.DataError, which is a "
        "ValueError, says what is wrong",
    ),
    "onnxruntime.training.onnxblock.optim": _NODES,
    "onnxruntime.training.onnxblock.optim.optim": _NODES,
    "onnxruntime.training.torchdynamo.register_backend": _explain_all(
        ["aot_ort", "dynamic_aot_ort", "ort", "dynamic_ort", "make_aot_ort"],
        'torch.compile(module, backend="steep")',
    ),
    "onnxruntime.training.utils": {
        **_explain_all(["PTable"], "module.report() has what an ORTModule's graphs take"),
        **_explain_all(["log_memory_usage"], 'the logger "steep" at INFO says what a step takes'),
        **_explain_all(
            ["nvtx_function_decorator", "torch_nvtx_range_push", "torch_nvtx_range_pop"],
            "torch.profiler.record_function",
        ),
    },
    "onnxruntime.training.utils.hooks": {
        **_explain_all(
            ["ZeROOffloadSubscriber"],
            "nothing to subscribe: ORTModule reads parameters where they are at each call",
        ),
    },
    "onnxruntime.training.ortmodule.experimental": _explain_all(
        ["ORTPipelineModule"], "steep.ORTModule around each layer, in deepspeed's PipelineModule"
    ),
    "onnxruntime.capi._pybind_state": _PYBIND,
    "onnxruntime.capi.onnxruntime_pybind11_state": _PYBIND,
}
"""By module, the names that Steep does not have, each with what to do instead."""

REFUSED_MODULES = {
    "onnxruntime.training.ortmodule.experimental.pipe": REFUSED[
        "onnxruntime.training.ortmodule.experimental"
    ]["ORTPipelineModule"],
    "onnxruntime.training.ort_triton": "nothing to configure: kernels are compiled ahead of time",
    "onnxruntime.training.postprocess": "steep.TrainingSession takes models as they are",
    **{f"onnxruntime.{m}": _STOCK for m in ("quantization", "transformers", "tools", "backend")},
    "onnxruntime.datasets": _STOCK,
}
"""Modules that Steep does not have, each with what to do instead."""


def remedy_of(module: str) -> str | None:
    """Return what to do instead of a module, by its own name or that of a parent module.

    None if the tables have neither, such as for a name that never existed.
    """
    own = None
    while own is None and module:
        own = REFUSED_MODULES.get(module)
        module, _, name = module.rpartition(".")
        own = own or REFUSED.get(module, {}).get(name)
    return own
