//! What goes over the socket of a stream.
//!
//! Both sides send frames: the length of the head and of the body in bytes, as two little-endian `u32`; the head, a message as
//! JSON; the body. Only [`ToConsumer::Batch`] has a body. A consumer begins with [`FromConsumer::Hello`] and is answered by
//! [`ToConsumer::Welcome`] or [`ToConsumer::Refused`]. Then batches come as long as fewer than `ahead` of them are out.
//!
//! Arrays are not in frames. With the first byte of a batch's frame come the files of the regions of shared memory in which they
//! lie (`SCM_RIGHTS`), in the order in which [`Contents::regions`] lists them. Such a file is sealed: it keeps its size, and
//! the server alone changes what is in it, and not before the consumer has said [`FromConsumer::Release`], or has closed the
//! socket. Mapped privately (`MAP_PRIVATE`), a consumer may write to it as to memory of its own.
//!
//! A consumer that shuts down its side of the socket for writing leaves: the batches that it did not acknowledge go to the
//! next one, while the regions that it still reads stay as they are until it closes the socket.

use std::fmt;
use std::sync::Arc;

use penstock_types::run::RunId;
use serde::{Deserialize, Serialize};

/// Version of all this.
pub const PROTOCOL: u32 = 2;

/// Most bytes of a head.
pub const MAX_HEAD_BYTES: usize = 4096;

/// Most bytes of a body.
pub const MAX_BODY_BYTES: usize = 64 << 20;

/// Most regions of one batch.
pub const MAX_REGIONS: usize = 9;

/// A message to a consumer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToConsumer {
    Welcome(Welcome),
    Batch(BatchHead),
    /// There are no more batches. The last frame.
    End(End),
    /// Nothing follows: who gets this closes the socket. The last frame.
    Refused(Refused),
}

/// A message from a consumer.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum FromConsumer {
    /// Authenticates the connection.
    Hello {
        /// The version that it speaks.
        protocol: u32,
        secret: String,
    },
    /// It is done with a batch that it was given on this socket: never give it to anybody again.
    Ack { seq: u64 },
    /// It does not read a region any more that it was given on this socket.
    Release { region: u64 },
}

/// Without the secret.
impl fmt::Debug for FromConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello { protocol, .. } => {
                f.debug_struct("Hello").field("protocol", protocol).finish_non_exhaustive()
            }
            Self::Ack { seq } => f.debug_struct("Ack").field("seq", seq).finish(),
            Self::Release { region } => f.debug_struct("Release").field("region", region).finish(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version that is spoken.
    pub protocol: u32,
    pub run: RunId,
    pub name: String,
    /// Batches that may be out and not acknowledged; no other comes before one of them is.
    pub ahead: usize,
}

/// Head of a batch; the body is [`Contents`] as JSON, and small data behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchHead {
    /// Its number in the run, from 0.
    pub seq: u64,
    /// Set if an earlier consumer was given it, and may have seen it.
    pub redelivered: bool,
    /// Bytes of the body that are [`Contents`].
    pub contents_bytes: u32,
}

/// A batch without its data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contents {
    pub keys: Vec<Arc<str>>,
    /// Pass over the source of every sample.
    pub epochs: Vec<u32>,
    /// Position in the unshuffled source of every sample.
    pub indexes: Vec<u64>,
    /// Hash of the fan-outs of every sample, where there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<Vec<u64>>,
    /// Regions that data lies in; at most [`MAX_REGIONS`], each once.
    pub regions: Vec<RegionHead>,
    /// Stacked fields, in the batch's order.
    pub fields: Vec<FieldHead>,
}

/// A region of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionHead {
    /// What to call it when it is released.
    pub id: u64,
    /// Bytes of it, from its begin, that have to be mapped.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldHead {
    pub name: Arc<str>,
    #[serde(flatten)]
    pub values: ValuesHead,
}

/// The values of a field over all samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum ValuesHead {
    /// An array: little-endian elements, row-major; the first dimension are the samples.
    Tensor {
        /// Element type, as NumPy spells it.
        dtype: String,
        shape: Vec<u32>,
        data: Spot,
    },
    /// Arrays of one element type, each of a shape of its own, one after another.
    Tensors {
        /// Element type, as NumPy spells it.
        dtype: String,
        /// Shape of each array.
        shapes: Vec<Vec<u32>>,
        data: Spot,
        /// Byte offsets at which the arrays begin, as for texts.
        offsets: Spot,
    },
    /// Texts, one after another.
    Texts {
        /// Their bytes, UTF-8.
        data: Spot,
        /// Where each begins, and the end: little-endian `u64`, one more than there are samples.
        offsets: Spot,
    },
    /// Blobs, one after another.
    Blobs {
        data: Spot,
        /// As those of texts.
        offsets: Spot,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spot {
    Region {
        /// Place in [`Contents::regions`], from 0.
        place: usize,
        /// First byte of it.
        offset: u64,
        bytes: u64,
    },
    /// In the body, behind [`Contents`].
    Body {
        /// First byte of it, from the end of [`Contents`].
        offset: u64,
        bytes: u64,
    },
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Whether all batches that the run makes were acknowledged. If not, the run was stopped, its time was up, or it has failed: its
    /// detail says which.
    pub whole: bool,
    /// Why it is not whole, if the stream itself failed.
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
    /// It does not know the secret, or belongs to another user.
    Stranger,
    Version,
    /// It said nothing in time, or something that cannot be.
    Garbled,
    /// The server's system does not let it send the batch.
    Trouble,
    /// It keeps too much of what it has acknowledged.
    Memory,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_are_what_the_documentation_says() {
        let written = |message: &FromConsumer| serde_json::to_value(message).unwrap();
        let hello = FromConsumer::Hello { protocol: 1, secret: "s".to_owned() };
        assert_eq!(written(&hello), json!({ "hello": { "protocol": 1, "secret": "s" } }));
        assert_eq!(written(&FromConsumer::Ack { seq: 7 }), json!({ "ack": { "seq": 7 } }));
        assert_eq!(written(&FromConsumer::Release { region: 3 }), json!({ "release": { "region": 3 } }));
        let field = FieldHead {
            name: "image".into(),
            values: ValuesHead::Tensor {
                dtype: "uint8".to_owned(),
                shape: vec![4, 2],
                data: Spot::Region { place: 0, offset: 64, bytes: 8 },
            },
        };
        let told = json!({
            "name": "image", "kind": "tensor", "dtype": "uint8", "shape": [4, 2],
            "data": { "region": { "place": 0, "offset": 64, "bytes": 8 } }
        });
        assert_eq!(serde_json::to_value(&field).unwrap(), told);
        assert_eq!(serde_json::from_value::<FieldHead>(told).unwrap(), field);
    }
}
