#!/bin/bash -eu
# Builds the fuzz targets as OSS-Fuzz wants them: CC, CXX, CFLAGS, CXXFLAGS, LIB_FUZZING_ENGINE and
# OUT come from it. Not tried in its infrastructure.
python3 -m venv "$WORK/venv"
"$WORK/venv/bin/pip" install -r <(grep -E '^(onnx|onednn-devel-cpu-gomp|cmake)[=>]' requirements-dev.txt)
export PATH="$WORK/venv/bin:$PATH"

cmake -S . -B "$WORK/build" -G Ninja -DPython_EXECUTABLE="$WORK/venv/bin/python" \
  -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_CXX_FLAGS="$CXXFLAGS" \
  -DSTEEP_BUILD_PYTHON=OFF -DSTEEP_BUILD_TESTS=OFF -DSTEEP_BUILD_FUZZ=ON \
  -DSTEEP_FUZZ_ENGINE="$LIB_FUZZING_ENGINE"
ninja -C "$WORK/build" tests/fuzz/all

# Shared libraries have to lie beside the programs.
mkdir -p "$OUT/lib"
for program in "$WORK"/build/tests/fuzz/*_fuzz; do
  name=$(basename "$program")
  cp "$program" "$OUT/"
  (cd "tests/fuzz/corpus/${name%_fuzz}" && zip -qr "$OUT/${name}_seed_corpus.zip" .)
  [[ -f tests/fuzz/$name.dict ]] && cp "tests/fuzz/$name.dict" "$OUT/"
  ldd "$program" | awk '/=> \// { print $3 }' |
    grep -E 'protobuf|dnnl|hwy|fmt|gomp|libomp|libz|jpeg|png' | xargs -r cp -Lt "$OUT/lib"
  patchelf --set-rpath '$ORIGIN/lib' "$OUT/$name"
done
