//! The interface of a service whose objects are a remote store.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use crate::remote::failure::Failure;
use crate::store::{IfThere, Version};

/// A connection to a bucket, container or host of a service, with its credentials.
///
/// Each method makes one request and classifies its failure; it neither repeats the request nor limits its time, which the layers around
/// it do. The layers see no connections: the service limits the time to open one (`Timeouts::connect`), and records in `observe` those that it
/// opens for a read. Keys and prefixes are those of the service: they include the prefix of the store. Dropping a future cancels the
/// request.
pub(crate) trait Service: Send + Sync + Sized + 'static {
    /// Rest of a response whose object is still being received.
    type Body: Send;

    /// Reason why there are no credentials.
    type Absent: fmt::Display + Send;

    /// Message for a listing in another order than that of the bytes of keys, which showed too late to sort them.
    const UNSORTED: &str;

    /// Requests one page of a listing.
    fn page(&self, wanted: &PageRequest<'_>) -> impl Future<Output = Result<Page, Failure>> + Send;

    /// Requests an object or a part of it, and waits for the start of the response. The service need not verify the response: the
    /// caller compares it with the request.
    fn read(
        &self,
        key: &str,
        part: Option<&Part<'_>>,
    ) -> impl Future<Output = Result<Response<Self::Body>, Failure>> + Send;

    /// Waits for the next bytes of an object; `None` at the end of the response.
    fn next_bytes(body: &mut Self::Body) -> impl Future<Output = Option<Result<Bytes, Failure>>> + Send;

    fn version(&self, key: &str) -> impl Future<Output = Result<Head, Failure>> + Send;

    /// Writes an object completely or not at all. With [`IfThere::Leave`], an existing object is [`Failure::Unmet`], and a service without
    /// conditional writes [`Failure::NotImplemented`].
    fn write(
        &self,
        key: &str,
        bytes: Bytes,
        if_there: IfThere,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Place of the connection, such as a region.
    fn place(&self) -> &str;

    /// Connects to the same objects at `place`, which the service has named; called once per store.
    fn at(&self, place: &str) -> Self;

    /// Remedy for objects at `place` that cannot be followed there; `is_tried` if the request was made for that place.
    fn elsewhere(place: &str, is_tried: bool) -> String;

    /// Number of different credentials found so far.
    fn generation(&self) -> u64;

    /// Searches for other credentials than those of `generation`, which were refused. `None` if they never change.
    fn renew(&self, generation: u64) -> impl Future<Output = Option<Renewal<Self::Absent>>> + Send;

    /// Remedy for requests without permission, if the settings suggest one.
    fn permission_note(&self) -> Option<&'static str>;
}

/// Request for a page of keys or folders, in the order of the service.
#[derive(Clone, Copy)]
pub(crate) struct PageRequest<'a> {
    pub(crate) prefix: &'a str,
    /// Key or folder behind which the first page begins.
    pub(crate) after: Option<&'a str>,
    /// Token of the page before.
    pub(crate) token: Option<&'a str>,
    /// Requests the folders directly in the folder `prefix`. The page may contain objects as well.
    pub(crate) is_of_folders: bool,
}

pub(crate) struct Page {
    pub(crate) objects: Vec<Listed>,
    /// Folders, each with its prefix and a `/` at its end.
    pub(crate) folders: Vec<Listed>,
    /// Set if further pages follow.
    pub(crate) is_truncated: bool,
    /// Token of the next page.
    pub(crate) next: Option<String>,
}

pub(crate) struct Listed {
    /// Key in UTF-8; for any other, the text by which the service represents it.
    pub(crate) name: String,
    pub(crate) is_utf8: bool,
    /// Set for an object without bytes, or without a stated size.
    pub(crate) is_empty: bool,
    /// Version of an object, if the listing states it.
    pub(crate) version: Option<Version>,
}

/// Part of an object.
pub(crate) struct Part<'a> {
    /// Range that is not empty; may go beyond the end of the object.
    pub(crate) range: Range<u64>,
    /// Tag that the object must have; another one is [`Failure::Unmet`]. A service may ignore it.
    pub(crate) tag: Option<&'a str>,
}

/// Statements of a response about an object.
pub(crate) struct Head {
    /// Tag of the version, such as an ETag in its quotes.
    pub(crate) tag: Option<String>,
    /// Time of the last change, in seconds and nanoseconds since 1970.
    pub(crate) modified: Option<(i64, u32)>,
    /// Number of bytes of the response.
    pub(crate) length: Option<i64>,
}

/// Start of a response with an object or a part of it.
pub(crate) struct Response<B> {
    pub(crate) head: Head,
    /// Range and size of the object in the form `bytes 0-99/1234`.
    pub(crate) content_range: Option<String>,
    /// Checksum of the whole object.
    pub(crate) crc32: Option<u32>,
    pub(crate) body: B,
}

/// Result of a search for credentials after a refusal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Renewal<A> {
    /// There are other credentials than the refused ones.
    Other,
    /// The origin still has the refused ones.
    Same,
    Failed(A),
}
