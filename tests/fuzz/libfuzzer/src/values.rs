#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| penstock_fuzz::values(input));
