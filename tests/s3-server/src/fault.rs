//! Trouble on demand.

use std::time::Duration;

/// What goes wrong with a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Trouble {
    /// This status, with an S3 error of this code.
    Status(u16, &'static str),
    /// `503 SlowDown` that asks to come again after so many seconds.
    SlowDown {
        /// The value of `Retry-After`.
        after_s: u64,
    },
    /// A page that is no S3 answer, as a proxy gives it, with this status.
    Page(u16),
    /// The connection is reset before anything is answered.
    Reset,
    /// The connection is reset after so many bytes of the body.
    ResetInBody(usize),
    /// The connection ends in good order after so many bytes of the body.
    Truncated(usize),
    /// So many bytes too many, and a length that says so.
    OverLong(usize),
    /// A bit of the body is flipped; its length and its checksum are those of the true one.
    FlippedBit,
    /// The answer begins after this time.
    Slow(Duration),
    /// The body comes in pieces of so many bytes, with a pause after each.
    Trickle(usize, Duration),
    /// Nothing ever comes.
    Hang,
    /// Nothing more comes after so many bytes of the body.
    HangInBody(usize),
    /// The bytes asked for are ignored: the whole object comes, with status 200.
    RangeIgnored,
    /// A listing that never ends: pages without keys, each of which says that more follow.
    EmptyPages,
    /// The whole object's CRC-32 stands on an answer that is only a part of it.
    ChecksumOfWholeOnPart,
}

/// Trouble for some of the requests.
#[derive(Clone, Debug)]
pub struct Fault {
    pub(crate) key: String,
    pub(crate) method: Option<&'static str>,
    pub(crate) skip: u64,
    pub(crate) times: u64,
    pub(crate) trouble: Trouble,
}

impl Fault {
    /// Trouble for every request whose key contains `key`; an empty one picks all, listings included.
    pub fn on(key: impl Into<String>, trouble: Trouble) -> Self {
        Self { key: key.into(), method: None, skip: 0, times: u64::MAX, trouble }
    }

    /// Only requests of this method.
    pub fn method(mut self, method: &'static str) -> Self {
        self.method = Some(method);
        self
    }

    /// Lets the first `count` such requests pass.
    pub fn after(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Ends after `count` requests that met it.
    pub fn times(mut self, count: u64) -> Self {
        self.times = count;
        self
    }

    /// Whether a request meets this; counts it.
    pub(crate) fn meets(&mut self, method: &str, key: &str) -> bool {
        if !key.contains(&self.key) || self.method.is_some_and(|wanted| wanted != method) || self.times == 0 {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.times -= 1;
        true
    }
}
