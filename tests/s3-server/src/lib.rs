//! An S3 server for tests and benches: one bucket, in memory or over a folder, on the `s3s` crate.
//!
//! It checks signatures, answers after a latency that is kept to the tenth of a millisecond, remembers every request,
//! and gives the trouble it was told to give: a [`Trouble`] for the requests that a [`Fault`] picks. It sets
//! `TCP_NODELAY`; without, every second answer would wait for an acknowledgement.
//!
//! It is no server for anything else: no multipart uploads, no versions, and listings are made from scratch for each page. [`Rclone`] is
//! the other server that tests ask.
#![warn(missing_docs)]

mod bucket;
mod connection;
mod fault;
mod rclone;
mod server;

pub use bucket::Conditions;
pub use fault::{Fault, Trouble};
pub use rclone::Rclone;
pub use server::{Latency, Seen, Server, Settings};
