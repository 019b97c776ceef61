//! Messages on the socket of a stream.
//!
//! Both sides send frames: the lengths of head and body in bytes, as two little-endian `u32`; the head, a message as JSON; the
//! body. Only [`ToConsumer::Batch`] has a body. A consumer begins with [`FromConsumer::Hello`], which is answered by
//! [`ToConsumer::Welcome`] or [`ToConsumer::Refused`]. Then batches follow while fewer than `ahead` are unacknowledged.
//!
//! Large arrays are not part of the frames. The first byte of a batch's frame comes with the file descriptors of the regions of shared
//! memory that contain the arrays (`SCM_RIGHTS`), in the order of [`BatchHead::regions`]. The file of a region is sealed: its size
//! is fixed, and only the server can change its content, which it does only after the consumer has sent [`FromConsumer::Release`]
//! or has closed the socket. Mapped privately (`MAP_PRIVATE`), the memory is writable for the consumer, whose writes stay in its
//! process.
//!
//! A consumer leaves by shutting down its side of the socket for writing: batches that it did not acknowledge go to the next
//! consumer, while the regions that it still reads stay unchanged until it closes the socket.

use std::fmt;

use penstock_types::run::RunId;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

/// Version of this protocol.
pub const PROTOCOL: u32 = 3;

/// Maximum length of a head in bytes.
pub const MAX_HEAD_BYTES: usize = 4096;

/// Maximum length of a body in bytes.
pub const MAX_BODY_BYTES: usize = 64 << 20;

/// Maximum number of regions of one batch.
pub const MAX_REGIONS: usize = 9;

/// A message to a consumer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToConsumer {
    Welcome(Welcome),
    Batch(BatchHead),
    /// The stream has ended; no frame follows.
    End(End),
    /// The connection is refused or ended by the server; no frame follows, and the consumer has to close the socket.
    Refused(Refused),
}

/// A message from a consumer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum FromConsumer {
    /// First message, which authenticates the connection.
    Hello {
        /// Protocol version of the consumer.
        protocol: u32,
        secret: Secret,
    },
    /// The consumer is done with a batch that it received on this socket; the server never sends it again.
    Ack { seq: u64 },
    /// The consumer no longer reads a region that it received on this socket.
    Release { region: u64 },
}

/// Secret of a run, which gives access to its batches. Its debug output does not contain it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(pub String);

impl Secret {
    /// Compares two secrets; takes constant time for secrets of equal length.
    pub(crate) fn is(&self, offered: &Self) -> bool {
        self.0.as_bytes().ct_eq(offered.0.as_bytes()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Protocol version of the server.
    pub protocol: u32,
    pub run: RunId,
    pub name: String,
    /// Maximum number of unacknowledged batches. The server sends no further batch while this number is reached.
    pub ahead: usize,
}

/// Head of a batch; the body is its frame, in the form of [`penstock_engine::codec`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchHead {
    /// Number of the batch in the run, from 0.
    pub seq: u64,
    /// Set if an earlier consumer received the batch and may have processed it.
    pub redelivered: bool,
    /// Regions that contain data of the batch, as the memory outside its frame: at most [`MAX_REGIONS`], and each only once.
    pub regions: Vec<RegionHead>,
}

/// A region of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionHead {
    /// Number that identifies the region in [`FromConsumer::Release`].
    pub id: u64,
    /// Number of bytes to map, from the start of the file.
    pub bytes: u64,
}

/// Result with which a stream ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// True if every batch of the run was acknowledged. If false, the run was stopped, its time was up, or it failed: the run's
    /// detail states the reason.
    pub whole: bool,
    /// Error of the stream itself, if it caused `whole` to be false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub reason: Refusal,
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Refusal {
    Busy,
    /// The consumer presented a wrong secret, or belongs to another user.
    Stranger,
    Version,
    /// The consumer sent no message within the time limit, or sent an invalid one.
    Garbled,
    /// The server cannot send the batch because of a system error.
    Trouble,
    /// The consumer keeps too many arrays of batches that it has acknowledged.
    Memory,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_have_the_documented_json_form() {
        let written = |message: &FromConsumer| serde_json::to_value(message).unwrap();
        let hello = FromConsumer::Hello { protocol: 1, secret: Secret("s".to_owned()) };
        assert_eq!(written(&hello), json!({ "hello": { "protocol": 1, "secret": "s" } }));
        assert_eq!(written(&FromConsumer::Ack { seq: 7 }), json!({ "ack": { "seq": 7 } }));
        assert_eq!(written(&FromConsumer::Release { region: 3 }), json!({ "release": { "region": 3 } }));
        let batch = ToConsumer::Batch(BatchHead {
            seq: 4,
            redelivered: false,
            regions: vec![RegionHead { id: 3, bytes: 4096 }],
        });
        let expected =
            json!({ "batch": { "seq": 4, "redelivered": false, "regions": [{ "id": 3, "bytes": 4096 }] } });
        assert_eq!(serde_json::to_value(&batch).unwrap(), expected);
        assert_eq!(serde_json::from_value::<ToConsumer>(expected).unwrap(), batch);
    }
}
