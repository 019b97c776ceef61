#![no_main]

mod json;

use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use penstock_fuzz::schema_words;

static WORDS: LazyLock<Vec<&'static str>> = LazyLock::new(schema_words);

fuzz_target!(|input: &[u8]| penstock_fuzz::schemas(input));
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    json::change(data, size, max_size, seed, &WORDS)
});
