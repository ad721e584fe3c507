//! Trains a linear regression from Rust, with the C library and nothing but std.
//!
//!     make install PREFIX=$HOME/steep
//!     .venv/bin/python examples/linear_regression/make_model.py .
//!     rustc --edition 2021 -O examples/rust/train.rs -L $HOME/steep/lib -l steep \
//!         -C link-arg=-Wl,-rpath,$HOME/steep/lib
//!     ./train linear.onnx trained.onnx
//!
//! steep_c.h says what each function does. Handles are freed where their owner goes; an error of the
//! library's is a String.

use std::ffi::{c_char, c_void, CStr, CString};
use std::ptr::{null, null_mut};

/// What stands behind a handle: nobody looks.
#[repr(C)]
struct Opaque {
    _private: [u8; 0],
}
type Handle = *mut Opaque;

/// steep_array
#[repr(C)]
struct Array {
    name: *const c_char,
    dtype: i32,
    rank: i32,
    dims: *const i64,
    data: *const c_void,
    bytes: usize,
}

/// steep_step
#[repr(C)]
#[derive(Default)]
struct Step {
    loss: f64,
    lr: f64,
    grad_norm: f64,
    loss_scale: f64,
    step: i64,
    skipped: i32,
}

const FLOAT32: i32 = 1;
const TRAINING: i32 = 1;

#[link(name = "steep")]
extern "C" {
    fn steep_error_message(error: Handle) -> *const c_char;
    fn steep_error_free(error: Handle) -> i32;
    fn steep_options_new(kind: i32, options: *mut Handle, error: *mut Handle) -> i32;
    fn steep_options_set_string(
        options: Handle,
        key: *const c_char,
        value: *const c_char,
        error: *mut Handle,
    ) -> i32;
    fn steep_options_set_number(
        options: Handle,
        key: *const c_char,
        value: f64,
        error: *mut Handle,
    ) -> i32;
    fn steep_options_free(options: Handle) -> i32;
    fn steep_training_open(
        path: *const c_char,
        options: Handle,
        session: *mut Handle,
        error: *mut Handle,
    ) -> i32;
    fn steep_training_step(
        session: Handle,
        inputs: *const Array,
        count: usize,
        step: *mut Step,
        outputs: *mut Handle,
        error: *mut Handle,
    ) -> i32;
    fn steep_training_export(
        session: Handle,
        path: *const c_char,
        options: Handle,
        error: *mut Handle,
    ) -> i32;
    fn steep_training_free(session: Handle) -> i32;
}

/// Runs a call, which is given the place for its error.
fn check(call: impl FnOnce(*mut Handle) -> i32) -> Result<(), String> {
    let mut error = null_mut();
    if call(&mut error) == 0 {
        return Ok(());
    }
    let text = unsafe { CStr::from_ptr(steep_error_message(error)) };
    let message = text.to_string_lossy().into_owned();
    unsafe { steep_error_free(error) };
    Err(message)
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|e| e.to_string())
}

struct Options(Handle);

impl Options {
    fn training() -> Result<Options, String> {
        let mut handle = null_mut();
        check(|error| unsafe { steep_options_new(TRAINING, &mut handle, error) })?;
        Ok(Options(handle))
    }

    fn text(self, key: &str, value: &str) -> Result<Options, String> {
        let (k, v) = (c_string(key)?, c_string(value)?);
        check(|error| unsafe {
            steep_options_set_string(self.0, k.as_ptr(), v.as_ptr(), error)
        })?;
        Ok(self)
    }

    fn number(self, key: &str, value: f64) -> Result<Options, String> {
        let k = c_string(key)?;
        check(|error| unsafe { steep_options_set_number(self.0, k.as_ptr(), value, error) })?;
        Ok(self)
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        unsafe { steep_options_free(self.0) };
    }
}

struct Training(Handle);

impl Training {
    fn open(path: &str, options: &Options) -> Result<Training, String> {
        let (file, mut handle) = (c_string(path)?, null_mut());
        check(|error| unsafe {
            steep_training_open(file.as_ptr(), options.0, &mut handle, error)
        })?;
        Ok(Training(handle))
    }

    /// A step on arrays of float32, in the order of the session's inputs: (extents, data).
    fn step(&self, inputs: &[(&[i64], &[f32])]) -> Result<Step, String> {
        let arrays: Vec<Array> = inputs
            .iter()
            .map(|(dims, data)| Array {
                name: null(),
                dtype: FLOAT32,
                rank: dims.len() as i32,
                dims: dims.as_ptr(),
                data: data.as_ptr().cast(),
                bytes: std::mem::size_of_val(*data),
            })
            .collect();
        let mut done = Step::default();
        check(|error| unsafe {
            let count = arrays.len();
            steep_training_step(self.0, arrays.as_ptr(), count, &mut done, null_mut(), error)
        })?;
        Ok(done)
    }

    fn export(&self, path: &str) -> Result<(), String> {
        let file = c_string(path)?;
        check(|error| unsafe { steep_training_export(self.0, file.as_ptr(), null_mut(), error) })
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        unsafe { steep_training_free(self.0) };
    }
}

const ROWS: usize = 64;
const FEATURES: usize = 10;

/// x [ROWS, FEATURES] in -1 to 1, and y [ROWS, 1], a sum of x with weights 0, 1, 2, …
fn data() -> (Vec<f32>, Vec<f32>) {
    let mut seed: u32 = 1;
    let mut draw = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let x: Vec<f32> = (0..ROWS * FEATURES).map(|_| draw()).collect();
    let sum = |row: &[f32]| row.iter().enumerate().map(|(i, v)| i as f32 * v).sum();
    let y = x.chunks(FEATURES).map(sum).collect();
    (x, y)
}

fn main() -> Result<(), String> {
    let files: Vec<String> = std::env::args().skip(1).collect();
    let [model, trained] = files.as_slice() else {
        return Err("usage: train MODEL TRAINED".to_string());
    };
    let options = Options::training()?
        .text("loss", "mse")?
        .text("optimizer", "sgd")?
        .number("lr", 0.3)?;
    let session = Training::open(model, &options)?;
    let (x, y) = data();
    let x_dims = [ROWS as i64, FEATURES as i64];
    let y_dims = [ROWS as i64, 1];
    for epoch in 1..=10 {
        let mut last = Step::default();
        for _ in 0..20 {
            last = session.step(&[(&x_dims, &x), (&y_dims, &y)])?;
        }
        println!("epoch {epoch}  step {}  loss {:.6}", last.step, last.loss);
    }
    session.export(trained)
}
