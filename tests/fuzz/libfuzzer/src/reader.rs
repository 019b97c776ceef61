#![no_main]

//! Reads objects of the format that `READER` names.

use std::env;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use penstock_fuzz::reader;

static READER: LazyLock<String> = LazyLock::new(|| env::var("READER").expect("READER is set"));

fuzz_target!(|input: &[u8]| reader(&READER, input));
