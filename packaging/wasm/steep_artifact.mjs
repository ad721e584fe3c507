// Trains from artifacts in browsers and in node (docs/runtime.md). It wraps the functions of
// steep_artifact.h, which steep_runtime.wasm beside this file has.
import steepRuntime from "./steep_runtime.mjs";

/** The kinds of arrays, by the numbers of ONNX's element types. A bool is a byte, 0 or 1. */
const ARRAYS = new Map([
  [1, Float32Array],
  [2, Uint8Array],
  [3, Int8Array],
  [4, Uint16Array],
  [5, Int16Array],
  [6, Int32Array],
  [7, BigInt64Array],
  [9, Uint8Array],
  [10, Uint16Array],
  [11, Float64Array],
  [12, Uint32Array],
  [13, BigUint64Array],
]);

/** What the library refuses. `name` is the kind of error, such as "ShapeError". */
export class SteepError extends Error {
  constructor(name, parts) {
    super(parts.message);
    Object.assign(this, parts, { name });
  }
}

/** An array that the library reads: `data` is a typed array, `dims` are its extents. */
export function array(data, dims = [data.length], dtype = undefined) {
  if (dtype === undefined) dtype = [...ARRAYS].find(([, kind]) => data instanceof kind)?.[0];
  if (dtype === undefined) throw new TypeError("expected a typed array, such as a Float32Array");
  return { data, dims, dtype };
}

/** Loads the library once. `options` are those of emscripten's modules, such as `locateFile`. */
export async function load(options = {}) {
  return new Library(await steepRuntime(options));
}

class Library {
  constructor(module) {
    this.module = module;
  }

  get version() {
    return this.module.UTF8ToString(this.module._steep_version());
  }

  /** Opens the bytes of a file that save_artifact() wrote. `maxBytes` bounds file and runs. */
  open(bytes, maxBytes = 0) {
    return this.scope((scope) => {
      const content = scope.bytes(bytes);
      const handle = scope.call("_steep_artifact_open_bytes", (result, error) => [
        content, bytes.length, BigInt(maxBytes), result, error,
      ]);
      return new Session(this, handle);
    });
  }

  /** Calls `work` with a Scope, whose memory is freed behind it. */
  scope(work) {
    const scope = new Scope(this.module);
    try {
      return work(scope);
    } finally {
      scope.free();
    }
  }
}

/** Memory of the library for the time of one call. */
class Scope {
  constructor(module) {
    this.module = module;
    this.blocks = [];
  }

  free() {
    for (const block of this.blocks) this.module._free(block);
  }

  /** The library's memory as it is now: it moves when it grows. */
  get view() {
    return new DataView(this.module.HEAPU8.buffer);
  }

  allocate(size) {
    const block = this.module._malloc(Math.max(size, 8));
    if (block === 0) {
      throw new SteepError("OutOfMemoryError", { message: "There is not enough memory." });
    }
    this.blocks.push(block);
    this.module.HEAPU8.fill(0, block, block + size);
    return block;
  }

  bytes(data) {
    const block = this.allocate(data.byteLength);
    this.module.HEAPU8.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), block);
    return block;
  }

  text(string) {
    const size = this.module.lengthBytesUTF8(string) + 1;
    const block = this.allocate(size);
    this.module.stringToUTF8(string, block, size);
    return block;
  }

  /** A list of steep_array. `arrays` are in the order of the inputs, or an object by name. */
  arrays(arrays) {
    const named = !Array.isArray(arrays);
    const entries = named ? Object.entries(arrays) : arrays.map((a) => [null, a]);
    const list = this.allocate(24 * entries.length);
    entries.forEach(([name, given], i) => {
      const { data, dims, dtype } = ArrayBuffer.isView(given) ? array(given) : given;
      const extents = this.bytes(BigInt64Array.from(dims, BigInt));
      const text = name === null ? 0 : this.text(name);
      const fields = [text, dtype, dims.length, extents, this.bytes(data), data.byteLength];
      fields.forEach((field, k) => this.view.setUint32(list + 24 * i + 4 * k, field, true));
    });
    return { list, count: entries.length };
  }

  /** Calls a function that may fail, and returns the pointer that it writes to `result`. */
  call(name, operands) {
    const result = this.allocate(8), error = this.allocate(4);
    const code = this.module[name](...operands(result, error));
    if (code !== 0) this.fail(this.view.getUint32(error, true));
    return this.view.getUint32(result, true);
  }

  fail(error) {
    const module = this.module;
    const part = (name) => module.UTF8ToString(module[`_steep_error_${name}`](error));
    const kind = module.UTF8ToString(module._steep_code_name(module._steep_error_code(error)));
    const parts = {};
    for (const name of ["message", "what", "node", "op", "expected", "received", "remedy"]) {
      parts[name] = part(name);
    }
    module._steep_error_free(error);
    throw new SteepError(kind, parts);
  }

  /** Copies the arrays of a steep_tensors, and frees it. */
  tensors(handle) {
    try {
      const results = [];
      for (let i = 0; i < this.module._steep_tensors_count(handle); ++i) {
        const at = this.allocate(24), error = this.allocate(4);
        if (this.module._steep_tensors_get(handle, i, at, error) !== 0) {
          this.fail(this.view.getUint32(error, true));
        }
        results.push(this.tensor(at));
      }
      return results;
    } finally {
      this.module._steep_tensors_free(handle);
    }
  }

  tensor(at) {
    const view = this.view;
    const fields = [0, 1, 2, 3, 4, 5].map((i) => view.getUint32(at + 4 * i, true));
    const [name, dtype, rank, dims, data, bytes] = fields;
    const kind = ARRAYS.get(dtype) ?? Uint8Array;
    return {
      name: this.module.UTF8ToString(name),
      dtype,
      dims: Array.from({ length: rank }, (_, i) => Number(view.getBigInt64(dims + 8 * i, true))),
      data: new kind(this.module.HEAPU8.slice(data, data + bytes).buffer),
    };
  }
}

/** A model that trains and predicts. Call free() when it is no longer used. */
class Session {
  constructor(library, handle) {
    this.library = library;
    this.handle = handle;
  }

  /** One step of training. Returns its loss, learning rate and number. */
  step(inputs) {
    return this.library.scope((scope) => {
      const { list, count } = scope.arrays(inputs);
      const step = scope.allocate(48);
      scope.call("_steep_artifact_step", (_, error) => [this.handle, list, count, step, 0, error]);
      const view = scope.view;
      const [loss, lr, gradNorm] = [0, 8, 16].map((at) => view.getFloat64(step + at, true));
      return { loss, lr, gradNorm, step: Number(view.getBigInt64(step + 32, true)) };
    });
  }

  /** The model's outputs for inputs without a label. */
  predict(inputs) {
    return this.library.scope((scope) => {
      const { list, count } = scope.arrays(inputs);
      return scope.tensors(
        scope.call("_steep_artifact_predict", (result, error) => [
          this.handle, list, count, result, error,
        ]),
      );
    });
  }

  /** Copies of all parameters. */
  weights() {
    return this.library.scope((scope) =>
      scope.tensors(
        scope.call("_steep_artifact_weights", (result, error) => [
          this.handle, 0, 0, result, error,
        ]),
      ),
    );
  }

  /** Overwrites the parameters of an object by name. */
  setWeights(weights) {
    this.library.scope((scope) => {
      const { list, count } = scope.arrays(weights);
      scope.call("_steep_artifact_set_weights", (_, error) => [this.handle, list, count, error]);
    });
  }

  /** The number of steps done. */
  get stepCount() {
    return this.library.scope((scope) => {
      let count = 0;
      scope.call("_steep_artifact_step_count", (result, error) => [
        this.handle, (count = result), error,
      ]);
      return Number(scope.view.getBigInt64(count, true));
    });
  }

  /** The learning rate of the next step. */
  get lr() {
    return this.library.scope((scope) => {
      let lr = 0;
      scope.call("_steep_artifact_lr", (result, error) => [this.handle, (lr = result), error]);
      return scope.view.getFloat64(lr, true);
    });
  }

  set lr(value) {
    this.library.scope((scope) => {
      scope.call("_steep_artifact_set_lr", (_, error) => [this.handle, value, error]);
    });
  }

  /** The bytes of an artifact of the present state, from which training can go on. */
  save() {
    const { FS } = this.library.module;
    const path = "/saved.steep"; // in the library's memory
    this.library.scope((scope) => {
      scope.call("_steep_artifact_save", (_, error) => [this.handle, scope.text(path), error]);
    });
    const bytes = FS.readFile(path);
    FS.unlink(path);
    return bytes;
  }

  /** Frees its memory; a second time does nothing. A handle is never used again. */
  free() {
    this.library.module._steep_artifact_free(this.handle);
  }
}
