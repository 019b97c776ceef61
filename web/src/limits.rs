//! Limits of connections, requests and answers.

use std::time::Duration;

/// Maximum number of connections; while all of them are busy, further connections are answered with 503.
pub(crate) const CONNECTIONS: usize = 512;
/// Number of connections in addition to [`CONNECTIONS`], for `/health` and sign-in only.
pub(crate) const KEPT_FREE: usize = 16;
/// Maximum number of event streams; each stream also counts as a connection. One client gets 258 of them, by the default share of
/// 75 %.
pub(crate) const EVENT_STREAMS: u64 = 344;
/// Maximum size of a document, in bytes.
pub(crate) const DOCUMENT_BYTES: usize = 1 << 20;
/// Maximum size of the request of a trial, in bytes; its samples are encoded as base64.
pub(crate) const TRIAL_BYTES: usize = 96 << 20;
/// Maximum memory of all documents and trials in requests together, as text or parsed, in bytes; small documents do not count.
pub const HELD_BYTES: u64 = 256 << 20;
/// Maximum memory of live events, and of all large responses together until clients have read them, in bytes.
pub const ANSWER_BYTES: u64 = 256 << 20;
/// Maximum time for the head of a request to arrive, and maximum idle time of a connection.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(10);
/// Maximum pause of a client while it sends or reads a body.
pub(crate) const STALL_TIME: Duration = Duration::from_secs(20);
/// Minimum rate at which a client must read a response, in bytes per second; live events are exempt.
pub(crate) const ANSWER_BYTES_PER_S: u64 = 16 << 10;
/// Maximum time for a document to arrive.
pub(crate) const BODY_TIME: Duration = Duration::from_secs(30);
/// Maximum time for which open requests continue after the shutdown has begun.
pub(crate) const DRAIN_TIME: Duration = Duration::from_secs(2);
