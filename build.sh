#!/usr/bin/env bash
# The command of ONNX Runtime Training's guides, for those who have it in their scripts:
#   ./build.sh --enable_training --config RelWithDebInfo --build_wheel
# It calls make. Options that ask for what Steep has not are refused by name. --dry_run only says
# what would be done.
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")"

refuse() {
  echo "build.sh: $1: $2" >&2
  exit 2
}

config=Release folder=build/Linux jobs='' goals=() run=''
while (($#)); do
  option=${1%%=*} value=''
  [[ $1 == *=* ]] && value=${1#*=}
  shift
  case $option in
    --config | --build_dir | --parallel) # with a value, behind = or as the next word
      if [[ ! $value ]] && (($#)) && [[ $1 != --* ]]; then
        value=$1
        shift
      fi
      [[ $value || $option == --parallel ]] || refuse "$option" "needs a value"
      ;;
  esac
  case $option in
    --config)
      config=$value
      case $config in
        Release) ;;
        RelWithDebInfo | MinSizeRel) echo "note: $config is built as Release is: -O3, stripped" >&2 ;;
        Debug) refuse --config "for Debug: cmake -S . -B build/debug -DCMAKE_BUILD_TYPE=Debug" ;;
        *) refuse --config "expected Release, RelWithDebInfo or MinSizeRel, received '$config'" ;;
      esac
      ;;
    --build_dir) folder=$(cd "$caller" && realpath -m "$value") ;;
    --parallel)
      [[ $value =~ ^[0-9]*$ ]] || refuse --parallel "expected a number, received '$value'"
      jobs=${value#0} # none, or 0: as many as there are cores
      ;;
    --build_wheel) goals+=(wheel) ;;
    --test) goals+=(test) ;;
    --dry_run) run=echo ;;
    --enable_training | --enable_training_apis | --enable_training_ops | --enable_pybind | \
      --update | --build | --skip_tests | --skip_submodule_sync | --allow_running_as_root | \
      --use_dnnl | --use_openmp) ;; # as it always is
    --use_mpi | --mpi_home | --enable_nccl | --use_nccl | --nccl_home)
      refuse "$option" "several processes train as PyTorch has it (docs/wrappers.md); leave it out"
      ;;
    --use_* | --cuda_* | --cudnn_* | --rocm_*)
      refuse "$option" "Steep runs on the CPU; plug-ins bring other devices (docs/providers.md); leave it out"
      ;;
    --build_shared_lib)
      refuse "$option" "the library for C and C++: make install PREFIX=DIR (docs/c_library.md)"
      ;;
    --cmake_*) refuse "$option" "set CMAKE_ARGS in the environment instead" ;;
    *) refuse "$option" "not known; leave it out (make help lists what can be built)" ;;
  esac
done

((${#goals[@]})) || goals=(build)
$run make "${goals[@]}" ${jobs:+JOBS=$jobs}
if [[ " ${goals[*]} " == *" wheel "* ]]; then # where the guides look for it
  $run mkdir -p "$folder/$config/dist"
  $run cp dist/steep-*.whl "$folder/$config/dist"
fi
