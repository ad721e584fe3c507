// Learns to read digits with the runtime for browsers (make wasm), here in node:
//   python make_artifact.py FOLDER && node train.mjs FOLDER [EPOCHS]
// It writes FOLDER/digits_trained.steep, from which any build of Steep can continue.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const build = new URL("../../build/wasm/", import.meta.url);
const { load, array } = await import(new URL("steep_artifact.mjs", build));

const [folder, epochs = "20"] = process.argv.slice(2);
const read = (name, Kind) => {
  const bytes = readFileSync(new URL(`${name}.bin`, pathToFileURL(`${folder}/`)));
  return new Kind(new Uint8Array(bytes).buffer);
};
const x = read("train_x", Float32Array), label = read("train_label", BigInt64Array);
const session = (await load()).open(readFileSync(`${folder}/digits.steep`));

const ROWS = 64, PIXELS = 64, CLASSES = 10;
const start = performance.now();
for (let epoch = 1; epoch <= Number(epochs); ++epoch) {
  let sum = 0;
  for (let row = 0; row < label.length; row += ROWS) {
    const end = Math.min(row + ROWS, label.length);
    const pixels = x.subarray(row * PIXELS, end * PIXELS);
    sum += session.step([array(pixels, [end - row, PIXELS]), label.subarray(row, end)]).loss;
  }
  console.log(`epoch ${epoch} loss ${sum / Math.ceil(label.length / ROWS)}`);
}
const perStep = (1000 * (performance.now() - start)) / session.stepCount;

const tested = read("test_x", Float32Array), expected = read("test_label", BigInt64Array);
const [logits] = session.predict([array(tested, [expected.length, PIXELS])]);
let right = 0;
expected.forEach((digit, row) => {
  const scores = logits.data.subarray(row * CLASSES, (row + 1) * CLASSES);
  if (scores.indexOf(Math.max(...scores)) === Number(digit)) ++right;
});
writeFileSync(`${folder}/digits_trained.steep`, session.save());
session.free();
console.log(`test accuracy ${right / expected.length}`);
console.log(`${perStep.toFixed(1)} µs a step`);
