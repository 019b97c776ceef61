#![no_main]

mod json;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};

fuzz_target!(|input: &[u8]| penstock_fuzz::manifest(input));
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    json::change(data, size, max_size, seed, WORDS)
});

const WORDS: &[&str] = &[
    "name",
    "version",
    "doc",
    "mode",
    "wants",
    "makes",
    "counters",
    "params",
    "sample",
    "batch",
    "stateful",
    "type",
    "object",
    "properties",
];
