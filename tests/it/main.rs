//! Whole runs of the real binary with real modules over real files: behaviour that the documentation promises to users.
#![expect(
    clippy::unwrap_used,
    reason = "a failure here fails the test; `allow-unwrap-in-tests` does not cover helpers"
)]

mod audio;
mod bench;
mod c_guest;
mod circles;
mod cli;
mod compile;
mod config;
mod data_cache;
mod delivered;
mod examples;
mod files;
mod first_week;
mod floors;
mod formats;
mod hostile;
mod index;
mod instances;
mod interrupt;
mod languages;
mod machine;
mod malformed;
mod manuals;
mod memory;
mod mixup;
mod new;
mod one_check;
mod output;
mod pack;
mod photos;
mod predict;
mod profile;
mod registry;
mod replay;
mod resume;
mod route;
mod s3_runs;
mod sandbox;
mod serve;
mod std_modules;
mod stream;
mod test_stage;
