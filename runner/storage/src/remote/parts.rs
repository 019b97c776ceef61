//! Reads objects: small ones in one request, large ones in parallel parts.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use penstock_types::text::printable;
use tokio::time::timeout;

use crate::observe::{note, now, observe};
use crate::remote::connected::Remote;
use crate::remote::failure::{Failure, MOST_MESSAGE};
use crate::remote::service::{Head, Part, Service};
use crate::stamp::MODIFIED;
use crate::store::{MAX_GET_BYTES, Version};

const PART_BYTES: u64 = 8 << 20;

/// Maximum size in bytes of an object that is read in one request: for such objects, parallel requests would cost more than they
/// save.
const SPLIT_BYTES: u64 = 2 * PART_BYTES;

const PARTS: usize = 4;

struct Begun {
    bytes: Bytes,
    version: Version,
    /// Checksum of the whole object, if the service provides it.
    crc32: Option<u32>,
}

pub(crate) async fn read_whole<S: Service>(
    remote: &Remote<S>,
    key: &str,
) -> Result<(Bytes, Version), Failure> {
    // A plain request instead of a range request: only a response with the whole object includes the object's checksum, and an
    // empty object has no range.
    let begun = remote.attempts(Duration::ZERO, |service| begin(remote, service, key)).await?;
    let version = begun.version.clone();
    let bytes = read_rest(remote, key, 0..version.size, begun).await?;
    Ok((bytes, version))
}

/// Reads exactly `range`, which is not empty; if `of` is given, only from this version of the object.
pub(crate) async fn read_range<S: Service>(
    remote: &Remote<S>,
    key: &str,
    range: Range<u64>,
    of: Option<&Version>,
) -> Result<Bytes, Failure> {
    let length = range.end - range.start;
    if length > MAX_GET_BYTES {
        let size = version(remote, key).await?.size;
        return Err(match range.end > size {
            true => Failure::OutOfRange { range, size },
            false => Failure::TooLarge { size: length },
        });
    }
    let first = range.start..if length <= SPLIT_BYTES { range.end } else { range.start + PART_BYTES };
    let read = |service| read_part(remote, service, key, first.clone(), of);
    match remote.attempts(Duration::ZERO, read).await {
        Ok(Begun { version: Version { size, .. }, .. }) if range.end > size => {
            Err(Failure::OutOfRange { range, size })
        }
        Ok(begun) => read_rest(remote, key, range, begun).await,
        Err(Failure::NothingThere) => {
            let size = version(remote, key).await?.size;
            Err(Failure::OutOfRange { range, size })
        }
        Err(failure) => Err(failure),
    }
}

pub(crate) async fn version<S: Service>(remote: &Remote<S>, key: &str) -> Result<Version, Failure> {
    let head = async |service: &S| remote.answer(service.version(key)).await?.version();
    remote.attempts(Duration::ZERO, head).await
}

impl Head {
    /// Tag of a version: the one of the service, or the time of the last change.
    fn tag(&self) -> Option<Arc<str>> {
        let modified =
            || self.modified.map(|(seconds, nanos)| format!("{MODIFIED}{seconds}.{nanos:09}").into());
        self.tag.as_deref().map(Arc::from).or_else(modified)
    }

    fn length(&self) -> Result<u64, Failure> {
        let length = self.length.and_then(|length| u64::try_from(length).ok());
        length.ok_or_else(|| Failure::passing("the response does not state its length"))
    }

    /// Version of an object whose size is the length of the response.
    fn version(&self) -> Result<Version, Failure> {
        Ok(Version { size: self.length()?, tag: self.tag() })
    }
}

/// Makes one request for the whole object and reads the response to the end, or to the end of the first part if the object is
/// large.
async fn begin<S: Service>(remote: &Remote<S>, service: &S, key: &str) -> Result<Begun, Failure> {
    let answer = remote.answer(service.read(key, None)).await?;
    let version = answer.head.version()?;
    let size = version.size;
    if let Some(range) = &answer.content_range
        && parse_content_range(range) != Some((0..size, size))
    {
        let range = printable(range, MOST_MESSAGE);
        let text = format!("the whole object was requested, but a part arrived: {range}");
        return Err(Failure::passing(text));
    }
    if size > MAX_GET_BYTES {
        return Err(Failure::TooLarge { size });
    }
    // For a large object, the rest of this response is abandoned by closing its connection. The cost is small: a large object
    // needs many requests.
    let most = if size <= SPLIT_BYTES { size } else { PART_BYTES };
    let bytes = body::<S>(answer.body, most, most == size, remote.options.timeouts.idle).await?;
    Ok(Begun { bytes, version, crc32: answer.crc32 })
}

/// Makes one request for `range`; if `of` is given, only from this version of the object.
async fn read_part<S: Service>(
    remote: &Remote<S>,
    service: &S,
    key: &str,
    range: Range<u64>,
    of: Option<&Version>,
) -> Result<Begun, Failure> {
    if of.is_some_and(|version| version.tag.is_none()) {
        return Err(Failure::lasting(
            "the service states neither a tag nor a time for the object, so that a change between its parts would go unnoticed",
        ));
    }
    let tag = of.and_then(|version| version.tag.as_deref()).filter(|tag| !tag.starts_with(MODIFIED));
    let part = Part { range: range.clone(), tag };
    let answer = remote.answer(service.read(key, Some(&part))).await?;
    let Some((found, size)) = answer.content_range.as_deref().and_then(parse_content_range) else {
        return Err(Failure::passing("the response to a request for a range does not state its range"));
    };
    let version = Version { size, tag: answer.head.tag() };
    // The version is checked, because a server may ignore the condition of the request.
    if of.is_some_and(|of| of.size != version.size || (of.tag.is_some() && of.tag != version.tag)) {
        return Err(Failure::Unmet);
    }
    if found.start != range.start || found.end != range.end.min(size) {
        return Err(Failure::passing(format!("bytes {range:?} were requested, but {found:?} arrived")));
    }
    let expected = found.end - found.start;
    let content_length = answer.head.length()?;
    if content_length != expected {
        let text = format!("expected {expected} bytes, but the response announces {content_length}");
        return Err(Failure::passing(text));
    }
    let bytes = body::<S>(answer.body, expected, true, remote.options.timeouts.idle).await?;
    Ok(Begun { bytes, version, crc32: None })
}

/// Reads the rest of `range`, in parallel parts, all of the same version of the object.
async fn read_rest<S: Service>(
    remote: &Remote<S>,
    key: &str,
    range: Range<u64>,
    begun: Begun,
) -> Result<Bytes, Failure> {
    let Begun { bytes: first, version, crc32 } = begun;
    let start = range.start + first.len() as u64;
    if start == range.end {
        return Ok(first);
    }
    let begin = now();
    let mut found_crc32 = crc32fast::Hasher::new();
    let mut verify = Duration::ZERO;
    let mut all = room(range.end - range.start)?;
    let mut add = |bytes: Bytes| {
        if crc32.is_some() {
            let begin = now();
            found_crc32.update(&bytes);
            verify += begin.elapsed();
        }
        all.extend_from_slice(&bytes);
    };
    add(first);
    let starts = (start..range.end).step_by(usize::try_from(PART_BYTES).unwrap_or(usize::MAX));
    let version = &version;
    let read = |start| {
        let part = start..range.end.min(start + PART_BYTES);
        remote.attempts(Duration::ZERO, move |service| {
            read_part(remote, service, key, part.clone(), Some(version))
        })
    };
    let parts: Vec<_> = starts.map(read).collect();
    let mut parts = stream::iter(parts).buffered(PARTS);
    let most = remote.options.timeouts.operation;
    let read = timeout(most, async {
        while let Some(part) = parts.try_next().await? {
            add(part.bytes);
        }
        Ok(())
    });
    // The times of parallel requests are meaningless for an observer of the whole read, so only the counts are added.
    let (read, requests) = observe(read).await;
    note(|parts| parts.add_counts(requests));
    read.unwrap_or_else(|_| {
        Err(Failure::lasting(format!("the object's parts were not read within {most:?}")))
    })?;
    drop(parts);
    note(|parts| (parts.body, parts.verify) = (parts.body + begin.elapsed().saturating_sub(verify), verify));
    if crc32.is_some_and(|crc32| crc32 != found_crc32.finalize()) {
        return Err(Failure::lasting("its bytes do not match the checksum of the service"));
    }
    Ok(Bytes::from(all))
}

/// Reads the first `expected` bytes of a response. If `is_all`, more bytes are an error.
async fn body<S: Service>(
    mut stream: S::Body,
    expected: u64,
    is_all: bool,
    idle: Duration,
) -> Result<Bytes, Failure> {
    let begin = now();
    let mut bytes = room(expected)?;
    // Cannot fail, because the buffer of this size could be allocated.
    let expected = usize::try_from(expected).unwrap_or(usize::MAX);
    while is_all || bytes.len() < expected {
        let next = timeout(idle, S::next_bytes(&mut stream)).await;
        let next = next.map_err(|_| Failure::passing(format!("the response stopped for {idle:?}")))?;
        match next {
            Some(Ok(piece)) if is_all && bytes.len() + piece.len() > expected => {
                return Err(Failure::passing(format!("expected {expected} bytes, but more arrived")));
            }
            Some(Ok(piece)) => bytes.extend_from_slice(&piece[..piece.len().min(expected - bytes.len())]),
            Some(Err(failure)) => return Err(failure),
            None if bytes.len() == expected => break,
            None => {
                let found = bytes.len();
                return Err(Failure::passing(format!("expected {expected} bytes, but {found} arrived")));
            }
        }
    }
    note(|parts| parts.body = begin.elapsed());
    Ok(Bytes::from(bytes))
}

/// Allocates a buffer of exactly this size; fails if there is not enough memory.
fn room(bytes: u64) -> Result<Vec<u8>, Failure> {
    let too_large = |_| Failure::lasting("there is not enough memory for the object");
    let bytes = usize::try_from(bytes).or(Err(())).map_err(too_large)?;
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).or(Err(())).map_err(too_large)?;
    Ok(room)
}

/// Parses the range and the object size of a header `bytes 0-99/1234`.
fn parse_content_range(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last).then_some((first..last.checked_add(1)?, size.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_range_contains_the_range_and_the_size() {
        assert_eq!(parse_content_range("bytes 0-99/1234"), Some((0..100, 1234)));
        assert_eq!(parse_content_range("bytes 5-5/6"), Some((5..6, 6)));
        for bad in
            ["", "bytes */10", "bytes 0-9/*", "0-9/10", "bytes 9-0/10", "bytes 0-18446744073709551615/1"]
        {
            assert_eq!(parse_content_range(bad), None, "{bad:?}");
        }
    }
}
