//! Whole runs of the real binary with real modules over real files: what issue and documentation promise to users.
#![expect(
    clippy::unwrap_used,
    reason = "what fails here fails its test; `allow-unwrap-in-tests` misses the helpers"
)]

mod audio;
mod c_guest;
mod cli;
mod config;
mod delivered;
mod examples;
mod files;
mod floors;
mod index;
mod instances;
mod interrupt;
mod memory;
mod mixup;
mod output;
mod pack_tokens;
mod photos;
mod replay;
mod sandbox;
mod toys;
