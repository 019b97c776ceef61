//! Transfers of batches with a driver that needs no GPU: see `tests/fake/libcuda.c`.
#![expect(
    clippy::unwrap_used,
    reason = "what fails here fails its test; `allow-unwrap-in-tests` misses the helpers"
)]

mod drivers;
mod fake;
mod life;
mod loss;
mod ring;
mod work;
