"""Names that ONNX Runtime Training 1.19 had, and ORTTrainer up to 1.16, by module."""

NAMES = {
    "onnxruntime": "InferenceSession SessionOptions GraphOptimizationLevel NodeArg ModelMetadata "
    "get_available_providers get_device set_seed set_default_logger_severity __version__ "
    "OrtValue IOBinding RunOptions SparseTensor OrtDevice is_ortmodule_available "
    "get_all_providers SessionIOBinding TrainingParameters TrainingSession OrtMemType "
    "set_cuda_device_id set_cuda_mem_limit",
    "onnxruntime.training": "PropagateCastOpsStrategy ORTModule DebugOptions LogLevel "
    "ORTTrainer ORTTrainerOptions TrainStepInfo TrainingParameters TrainingSession "
    "register_graph_optimizer",
    "onnxruntime.training.pytorch": "trainer",
    "onnxruntime.training.ortmodule": "ORTModule DebugOptions LogLevel ONNX_OPSET_VERSION "
    "MINIMUM_RUNTIME_PYTORCH_VERSION_STR ORTMODULE_FALLBACK_POLICY ORTMODULE_FALLBACK_RETRY "
    "ORTMODULE_TORCH_CPP_DIR ORTMODULE_IS_DETERMINISTIC register_graph_optimizer "
    "ORTModuleFallbackException ORTModuleInitException ORTModuleDeviceException "
    "ORTModuleTorchModelException ORTModuleONNXModelException ORTModuleIOError",
    "onnxruntime.training.ortmodule._fallback": "_FallbackPolicy ORTModuleFallbackException",
    "onnxruntime.training.ortmodule._fallback_exceptions": "ORTModuleTorchModelException "
    "ORTModuleONNXModelException ORTModuleIOError wrap_exception",
    "onnxruntime.training.ortmodule._custom_autograd_function": "enable_custom_autograd_support "
    "custom_autograd_function_enabler",
    "onnxruntime.training.ortmodule.options": "DebugOptions LogLevel _SkipCheck",
    "onnxruntime.training.ortmodule.graph_optimizer_registry": "register_graph_optimizer",
    "onnxruntime.training.ortmodule.experimental.json_config": "load_from_json",
    "onnxruntime.training.ortmodule.experimental.hierarchical_ortmodule": "HierarchicalORTModule",
    "onnxruntime.training.ortmodule.experimental.pipe": "ORTPipelineModule",
    "onnxruntime.training.experimental": "export_gradient_graph",
    "onnxruntime.training.optim": "FusedAdam AdamWMode FP16_Optimizer SGDConfig AdamConfig "
    "LambConfig _OptimizerConfig ConstantWarmupLRScheduler CosineWarmupLRScheduler "
    "LinearWarmupLRScheduler PolyWarmupLRScheduler _LRScheduler",
    "onnxruntime.training.optim.fused_adam": "FusedAdam AdamWMode",
    "onnxruntime.training.optim.fp16_optimizer": "FP16_Optimizer",
    "onnxruntime.training.optim.config": "SGDConfig AdamConfig LambConfig",
    "onnxruntime.training.optim.lr_scheduler": "LinearWarmupLRScheduler PolyWarmupLRScheduler",
    "onnxruntime.training.amp": "LossScaler DynamicLossScaler",
    "onnxruntime.training.amp.loss_scaler": "LossScaler DynamicLossScaler",
    "onnxruntime.training.orttrainer": "ORTTrainer ORTTrainerOptions TrainStepInfo",
    "onnxruntime.experimental": "ORTTrainer ORTTrainerOptions TrainStepInfo",
    "onnxruntime.experimental.orttrainer": "ORTTrainer ORTTrainerOptions TrainStepInfo",
    "onnxruntime.experimental.optim": "SGDConfig AdamConfig LambConfig",
    "onnxruntime.experimental.amp": "LossScaler DynamicLossScaler",
    "onnxruntime.training.orttrainer_options": "ORTTrainerOptions",
    "onnxruntime.training.model_desc_validation": "_ORTTrainerModelDesc",
    "onnxruntime.training._utils": (
        "dtype_onnx_to_torch dtype_torch_to_numpy get_device_index get_device_index_from_input "
        "import_module_from_file state_dict_model_key state_dict_optimizer_key static_vars"
    ),
    "onnxruntime.training.ortmodule._execution_agent": "InferenceAgent TrainingAgent",
    "onnxruntime.training.postprocess": "run_postprocess",
    "onnxruntime.training.checkpoint": "aggregate_checkpoints experimental_save_checkpoint "
    "experimental_load_checkpoint experimental_state_dict experimental_load_state_dict",
    "onnxruntime.training.api": "Module Optimizer CheckpointState LinearLRScheduler",
    "onnxruntime.training.api.checkpoint_state": "CheckpointState Parameter Parameters Properties",
    "onnxruntime.training.api.module": "Module",
    "onnxruntime.training.api.optimizer": "Optimizer",
    "onnxruntime.training.api.lr_scheduler": "LinearLRScheduler",
    "onnxruntime.training.artifacts": "generate_artifacts LossType OptimType OptimizationStyle",
    "onnxruntime.tools.convert_onnx_models_to_ort": "OptimizationStyle",
    "onnxruntime.training.onnxblock": "base empty_base custom_op_library Block ForwardBlock "
    "TrainingBlock blocks loss optim save_checkpoint load_checkpoint_to_model",
    "onnxruntime.training.onnxblock.model_accessor": "base empty_base custom_op_library",
    "onnxruntime.training.onnxblock.checkpoint_utils": "save_checkpoint load_checkpoint_to_model",
    "onnxruntime.training.onnxblock.blocks": "Block Add Sub Mul Div Pow ReduceMean ReduceSum "
    "Sigmoid Log Neg Abs Constant SequenceConstruct ReduceAllL2 Clip PassThrough InputLike "
    "LabelEncoder Cast Linear",
    "onnxruntime.training.onnxblock.loss": "MSELoss CrossEntropyLoss BCEWithLogitsLoss L1Loss",
    "onnxruntime.training.onnxblock.optim": "AdamW SGD AdamWOptimizer SGDOptimizer ClipGradNorm",
    "onnxruntime.training.utils": "extract_data_and_schema unflatten_data_using_schema PTable "
    "PrimitiveType ORTModelInputOutputType ORTModelInputOutputSchemaType log_memory_usage "
    "nvtx_function_decorator torch_nvtx_range_push torch_nvtx_range_pop "
    "pytorch_type_to_onnx_dtype onnx_dtype_to_pytorch_dtype pytorch_scalar_type_to_pytorch_dtype",
    "onnxruntime.training.utils.torch_io_helper": "PrimitiveType extract_data_and_schema",
    "onnxruntime.training.utils.torch_type_map": "pytorch_type_to_onnx_dtype",
    "onnxruntime.training.utils.hooks": "GlobalSubscriberManager SubscriberManager "
    "StatisticsSubscriber inspect_activation ZeROOffloadSubscriber "
    "configure_ort_compatible_zero_stage3",
    "onnxruntime.training.utils.data": "LoadBalancingDistributedSampler "
    "LoadBalancingDistributedBatchSampler",
    "onnxruntime.training.torchdynamo.register_backend": "aot_ort dynamic_aot_ort ort dynamic_ort "
    "make_aot_ort",
    "onnxruntime.training.ort_triton": "register_triton_kernel",
    "onnxruntime.quantization": "quantize_dynamic",
    "onnxruntime.capi._pybind_state": "TrainingParameters OrtModuleGraphBuilder "
    "OrtModuleGraphBuilderConfiguration GraphInfo TrainingGraphTransformerConfiguration "
    "PropagateCastOpsConfiguration GradientGraphBuilder GradientGraphConfiguration TrainingAgent "
    "PartialGraphExecutionState OrtValueCache OrtValueVector GradientNodeDefinition "
    "GradientNodeAttributeDefinition register_gradient_definition "
    "register_custom_stop_gradient_edges register_forward_runner register_backward_runner "
    "register_torch_autograd_function register_shape_inference_function "
    "register_input_alias_function register_miscellaneous_const_input register_aten_op_executor "
    "unregister_python_functions get_optimized_model get_model_after_loading_checkpoint "
    "save_checkpoint load_checkpoint is_ortmodule_available is_triton_enabled "
    "is_torch_interop_default_on clear_training_ep_instances is_dlpack_uint8_tensor",
    "onnxruntime.capi.onnxruntime_pybind11_state": "OrtValue OrtDevice SessionIOBinding RunOptions "
    "PropagateCastOpsStrategy Severity set_arena_extend_strategy set_cuda_device_id "
    "set_cuda_mem_limit ArenaExtendStrategy get_available_providers get_all_providers",
    "onnxruntime.capi.onnxruntime_inference_collection": "InferenceSession IOBinding OrtValue "
    "OrtDevice",
    "onnxruntime.capi.training.training_session": "TrainingSession",
    "onnxruntime.capi.training.ort_trainer": "IODescription ModelDescription ORTTrainer LossScaler",
    "onnxruntime.capi.training": "IODescription ModelDescription ORTTrainer LossScaler",
    "onnxruntime.capi.ort_trainer": "IODescription ModelDescription ORTTrainer LossScaler",
    "torch_ort": "ORTModule DebugOptions LogLevel set_seed __version__",
    "torch_ort.optim": "FusedAdam FP16_Optimizer",
    "torch_ort.utils.data": "LoadBalancingDistributedSampler LoadBalancingDistributedBatchSampler",
    "torch_ort.experimental.json_config": "load_from_json",
    "torch_ort.experimental.graph_config": "set_propagate_cast_ops_optimization",
    "torch_ort.configure": "",
}

# What those have: methods, flags, keys of settings, the API in C and C++.
MEMBERS = """
FALLBACK_DISABLE FALLBACK_FORCE_TORCH_FORWARD FALLBACK_FORCE_TORCH_BACKWARD
FALLBACK_UNSUPPORTED_DEVICE FALLBACK_UNSUPPORTED_DATA FALLBACK_UNSUPPORTED_TORCH_MODEL
FALLBACK_UNSUPPORTED_ONNX_MODEL FALLBACK_BAD_INITIALIZATION SKIP_CHECK_DISABLED SKIP_CHECK_DEVICE
SKIP_CHECK_BUILD_GRADIENT SKIP_CHECK_EXECUTION_AGENT ADAM_L2_REGULARIZATION ADAMW_TRANSFORMERS
ADAMW_TORCH BEFORE_WEIGHT_UPDATE PropagateCastOps UseExternalGPUAllocator
EnableCustomAutogradFunction EnableGradAccOptimization RunSymbolicShapeInference UseStaticShape
SkipCheck LogLevel SaveONNX ONNXPrefix SaveONNXPath UseMemoryEfficientGradient FallbackPolicy
OnnxOpsetVersion infer_shape alias_input get_lr get_last_lr get_subscriber get_run_context
merge_activation_summary train_step eval_step save_as_onnx state_dict load_state_dict
save_checkpoint load_checkpoint gradient_accumulation_steps mem_limit world_rank world_size
local_rank data_parallel_size horizontal_parallel_size allreduce_post_accumulation enable_adasum
deepspeed_zero_optimization pipeline_parallel lr_scheduler session_options mixed_precision enabled
loss_scaler graph_transformer attn_dropout_recompute gelu_recompute transformer_layer_recompute
number_recompute_layers propagate_cast_ops_config frozen_weights grad_norm_clip
memory_efficient_gradient run_symbolic_shape_infer deterministic_compute check_model_export
graph_save_paths enable_internal_postprocess extra_postprocess onnx_opset_version
enable_onnx_contrib_ops provider_options lazy_reset_grad get_contiguous_parameters
get_parameters_size copy_buffer_to_parameters export_model_for_inferencing input_names output_names
set_learning_rate get_learning_rate properties MSELoss CrossEntropyLoss BCEWithLogitsLoss L1Loss
AdamW SGD AdamWOptimizer SGDOptimizer ClipGradNorm to_model_proto PassThrough InputLike LabelEncoder
SequenceConstruct ReduceAllL2 Linear requires_grad frozen_params nominal_checkpoint ort_format
loss_input_names additional_output_names LoadCheckpoint LoadCheckpointFromBuffer SaveCheckpoint
AddProperty GetProperty GetParameterTypeAndShape UpdateParameter GetParameter ReleaseCheckpointState
CreateTrainingSession CreateTrainingSessionFromBuffer ReleaseTrainingSession SetSeed TrainStep
EvalStep LazyResetGrad OptimizerStep SetLearningRate GetLearningRate RegisterLinearLRScheduler
SchedulerStep GetParametersSize CopyParametersToBuffer CopyBufferToParameters
ExportModelForInferencing InputNames OutputNames ToBuffer FromBuffer GetTrainingApi
OrtTrainingSession OrtCheckpointState get_gradient_model get_forward_model get_graph_info
run_forward run_backward get_serialized_ortmodule_memory_stat load_model read_bytes get_state
get_model_state get_optimizer_state load_state
loss_output_name weights_to_train weights_not_to_train immutable_weights training_optimizer_name
optimizer_attributes_map optimizer_int_attributes_map set_optimizer_initial_state
lr_params_feed_name enable_grad_norm_clip use_mixed_precision loss_scale propagate_cast_ops_level
propagate_cast_ops_allow use_fp16_moments set_gradients_as_graph_outputs
model_after_graph_transforms_path model_with_gradient_graph_path model_with_training_graph_path
use_memory_efficient_gradient deepspeed_zero_stage pipeline_parallel_size pipeline_cut_info_string
num_pipeline_micro_batches sliced_schema sliced_axes sliced_tensor_names initializer_names
initializer_names_to_train input_names_require_grad user_input_names user_output_names
user_input_grad_names initializer_grad_names_to_train module_output_gradient_name
output_grad_indices_non_differentiable output_grad_indices_require_full_shape
module_output_indices_requires_save_for_backward frontier_node_arg_map cached_node_arg_names
enable_caching build_gradient_graph initialize build loglevel push_back push_back_batch reserve
shrink_to_fit dlpack_at to_dlpacks element_type_at bool_tensor_indices insert keys clear count
remove
"""
