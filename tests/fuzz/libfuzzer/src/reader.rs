#![no_main]

//! Reads objects of the format that `READER` names.

use std::sync::LazyLock;
use std::{env, panic};

use libfuzzer_sys::fuzz_target;
use penstock_fuzz::reader;

static READER: LazyLock<String> = LazyLock::new(|| env::var("READER").expect("READER is set"));

fuzz_target!(init: start(), |input: &[u8]| {
    reader(&READER, input);
});

/// Panics of the Parquet library are no findings: they are caught around its decoders, and are the reason why a file is refused.
fn start() {
    let aborts = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info.location().is_some_and(|place| place.file().contains("/parquet-")) {
            aborts(info);
        }
    }));
}
