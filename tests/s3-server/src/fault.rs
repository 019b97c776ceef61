//! Faults that tests inject.

use std::time::Duration;

/// Kind of fault of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Trouble {
    /// Responds with this status, and an S3 error with this code.
    Status(u16, &'static str),
    /// Responds with `503 SlowDown` and a `Retry-After` header.
    SlowDown {
        /// Value of `Retry-After`, in seconds.
        after_s: u64,
    },
    /// Responds with `301 PermanentRedirect` and this region of the bucket.
    OtherRegion(&'static str),
    /// Responds with this status and a page that is not in S3's format, like that of a proxy.
    Page(u16),
    /// Resets the connection before the response.
    Reset,
    /// Resets the connection after this many bytes of the body.
    ResetInBody(usize),
    /// Closes the connection properly after this many bytes of the body.
    Truncated(usize),
    /// Sends this many extra bytes, with a matching `Content-Length`.
    OverLong(usize),
    /// Flips one bit of the body; the announced length and checksum remain those of the original.
    FlippedBit,
    /// Delays the response by this time.
    Slow(Duration),
    /// Sends the body in pieces of this many bytes, with a pause after each.
    Trickle(usize, Duration),
    /// Keeps the connection open and sends nothing.
    Hang,
    /// Sends nothing after this many bytes of the body.
    HangInBody(usize),
    /// Ignores the range: sends the whole object, with status 200.
    RangeIgnored,
    /// Lists endlessly: pages without keys, each of which announces another one.
    EmptyPages,
    /// Lists endlessly: pages with these elements, each of which announces another one by a new token.
    EqualPages(&'static str),
    /// Ends the body behind the first occurrence of this text, with a matching `Content-Length`.
    Cut(&'static str),
    /// Replaces each occurrence of the first text in the body by the second one.
    Edited(&'static str, &'static str),
    /// Responds with this status and body.
    Answer(u16, &'static str),
    /// Responds with this status and a body that does not end.
    Endless(u16),
    /// Responds with another status than usual.
    OtherStatus(u16),
    /// Adds a header to the response.
    Header(&'static str, &'static str),
    /// Sends the CRC-32 of the whole object with a part of it.
    ChecksumOfWholeOnPart,
}

/// Fault for a selection of the requests.
#[derive(Clone, Debug)]
pub struct Fault {
    pub(crate) key: String,
    pub(crate) method: Option<&'static str>,
    pub(crate) skip: u64,
    pub(crate) times: u64,
    pub(crate) trouble: Trouble,
}

impl Fault {
    /// Creates a fault for every request whose key contains `key`; an empty `key` selects all requests, including listings.
    pub fn on(key: impl Into<String>, trouble: Trouble) -> Self {
        Self { key: key.into(), method: None, skip: 0, times: u64::MAX, trouble }
    }

    /// Restricts the fault to requests of this method.
    pub fn method(mut self, method: &'static str) -> Self {
        self.method = Some(method);
        self
    }

    /// Lets the first `count` matching requests pass.
    pub fn after(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Ends the fault after `count` requests.
    pub fn times(mut self, count: u64) -> Self {
        self.times = count;
        self
    }

    /// True if the fault applies to a request; counts the request.
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
