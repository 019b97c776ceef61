#![no_main]

mod json;

use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use penstock_fuzz::document_words;

/// Words of the schema, and the names that the fuzz target defines.
static WORDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let words = document_words().into_iter().map(|word| &*word.leak());
    words.chain(["s", "b", "h", "here", "auto", "host"]).collect()
});

fuzz_target!(|input: &[u8]| penstock_fuzz::document(input));
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    json::change(data, size, max_size, seed, &WORDS)
});
