//! An S3 server for tests and benches: one bucket, in memory or over a folder, on the `s3s` crate.
//!
//! The server checks signatures, responds after a latency that is exact to a tenth of a millisecond, records every request, and
//! injects faults: a [`Trouble`] for the requests that a [`Fault`] selects, and [`Mode`]s, in which all requests meet a property of real
//! buckets and services. It sets `TCP_NODELAY`; without it, every second
//! response would wait for an acknowledgement.
//!
//! The server supports no multipart uploads and no versions, and collects listings anew for each page. Tests also use a second S3
//! server, [`Rclone`].
#![warn(missing_docs)]

mod bucket;
mod connection;
mod fault;
mod mode;
mod rclone;
mod server;

pub use bucket::Conditions;
pub use fault::{Fault, Trouble};
pub use mode::{Mode, Order, signed_region};
pub use rclone::Rclone;
pub use server::{Latency, Seen, Server, Settings};
