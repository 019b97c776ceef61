#![no_main]

use std::panic;
use std::thread;

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use wasm_mutate::WasmMutate;

/// Name of the thread on which the sandbox runs code that may panic; a panic is reported as a fault of the upload.
const CONTAINED: &str = "compile-module";
/// Fuel of the mutator: limits its effort for one mutation.
const FUEL: u64 = 200;

fuzz_target!(init: let_contained_panics_pass(), |input: &[u8]| penstock_fuzz::upload(input));

// A module with randomly changed bytes is rarely valid, so three of four inputs are mutated as modules.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if seed % 4 > 0
        && let Some(changed) = changed(&data[..size], seed)
        && changed.len() <= max_size
    {
        data[..changed.len()].copy_from_slice(&changed);
        return changed.len();
    }
    fuzzer_mutate(data, size, max_size)
});

/// Mutates a valid core module.
fn changed(module: &[u8], seed: u32) -> Option<Vec<u8>> {
    wasmparser::validate(module).ok()?;
    let mut mutate = WasmMutate::default();
    mutate.seed(u64::from(seed)).fuel(FUEL).preserve_semantics(seed % 2 == 0);
    let mut changes = mutate.run(module).ok()?;
    changes.next()?.ok()
}

fn let_contained_panics_pass() {
    let aborts = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if thread::current().name() != Some(CONTAINED) {
            aborts(info);
        }
    }));
}
