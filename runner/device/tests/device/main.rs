//! The whole way of a batch to a GPU, over a driver without one: see `tests/fake/libcuda.c`.
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
