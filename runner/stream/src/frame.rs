use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::protocol::{MAX_HEAD_BYTES, MAX_REGIONS};
use crate::region::Region;

/// Number of bytes before the head, which contain the lengths of head and body.
const LENGTHS: usize = 8;

const READ_BYTES: usize = 16 << 10;

/// A frame to send.
pub(crate) struct Outgoing {
    /// Lengths and head as sent.
    head: Vec<u8>,
    body: Bytes,
    /// Regions whose file descriptors are sent together with the first byte of the frame.
    regions: Vec<Arc<Region>>,
    sent: usize,
}

/// Buffer for received bytes and file descriptors that were not yet taken as frames.
#[derive(Debug)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    files: VecDeque<OwnedFd>,
    /// Maximum length of a body in bytes.
    most: usize,
}

/// Result of a single read from the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Something,
    Nothing,
    End,
}

/// Reason why received bytes are not a valid frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Garbled {
    #[error(
        "a frame has a head of {head} bytes and a body of {body}; the limits are {MAX_HEAD_BYTES} and {most}"
    )]
    TooLarge { head: usize, body: usize, most: usize },
    #[error("the header of a frame is not a valid message")]
    Head(#[source] serde_json::Error),
    #[error("a batch has {wanted} regions, but {found} file descriptors came with it")]
    Files { wanted: usize, found: usize },
}

/// Omits the contents from the output, because they may be a secret.
impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing").field("sent", &self.sent).finish_non_exhaustive()
    }
}

impl Outgoing {
    pub(crate) fn new(message: &impl Serialize) -> Self {
        Self::with_body(message, Bytes::new(), Vec::new())
    }

    pub(crate) fn with_body(message: &impl Serialize, body: Bytes, regions: Vec<Arc<Region>>) -> Self {
        let message = serde_json::to_vec(message).expect("texts and numbers are JSON");
        let length = |bytes: usize| u32::try_from(bytes).expect("bodies are bounded").to_le_bytes();
        let head = [&length(message.len())[..], &length(body.len()), &message].concat();
        Self { head, body, regions, sent: 0 }
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.sent > 0
    }

    /// Sends as much as the socket accepts now. Returns true if the frame has been sent completely.
    pub(crate) fn send(&mut self, socket: impl AsFd) -> io::Result<bool> {
        let all = self.head.len() + self.body.len();
        let files: Vec<BorrowedFd<'_>> = self.regions.iter().map(|region| region.file.as_fd()).collect();
        while self.sent < all {
            let head = &self.head[self.sent.min(self.head.len())..];
            let body = &self.body[self.sent.saturating_sub(self.head.len())..];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_REGIONS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if self.sent == 0 && !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&files)) {
                return Err(io::Error::other("a batch has more regions than fit into a message"));
            }
            let pieces = [IoSlice::new(head), IoSlice::new(body)];
            match sendmsg(&socket, &pieces, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

impl Incoming {
    /// Creates a receiver of frames whose bodies have up to `most` bytes. With 0, no batches are expected, and received file
    /// descriptors are closed.
    pub(crate) fn new(most: usize) -> Self {
        Self { bytes: Vec::new(), files: VecDeque::new(), most }
    }

    /// Reads once from the socket, without waiting.
    pub(crate) fn read(&mut self, socket: impl AsFd) -> io::Result<Read> {
        let mut chunk = [0; READ_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_REGIONS))];
        // Without a buffer for file descriptors, the system closes any descriptors that arrive.
        let space = if self.most == 0 { &mut [][..] } else { &mut space[..] };
        let mut control = RecvAncillaryBuffer::new(space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(socket, &mut [IoSliceMut::new(&mut chunk)], &mut control, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Read::Nothing),
            Err(error) => return Err(error.into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.files.extend(files);
            }
        }
        // If one file descriptor is missing, all later descriptors would be assigned to the wrong regions.
        if self.most > 0 && received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::other(
                "some file descriptors of a batch are missing: this process may have too many files open (`ulimit -n`)",
            ));
        }
        if received.bytes == 0 {
            return Ok(Read::End);
        }
        self.bytes.extend_from_slice(&chunk[..received.bytes]);
        Ok(Read::Something)
    }

    /// Returns the next frame, if all of it has arrived.
    pub(crate) fn take<M: DeserializeOwned>(&mut self) -> Result<Option<(M, Bytes)>, Garbled> {
        let Some((lengths, rest)) = self.bytes.split_first_chunk::<LENGTHS>() else { return Ok(None) };
        let [a, b, c, d, e, f, g, h] = *lengths;
        let (head, body) =
            (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]) as usize);
        if head > MAX_HEAD_BYTES || body > self.most {
            return Err(Garbled::TooLarge { head, body, most: self.most });
        }
        if rest.len() < head + body {
            return Ok(None);
        }
        let message = serde_json::from_slice(&rest[..head]).map_err(Garbled::Head)?;
        let body = Bytes::copy_from_slice(&rest[head..head + body]);
        self.bytes.drain(..LENGTHS + head + body.len());
        Ok(Some((message, body)))
    }

    /// Returns the file descriptors that came with the last frame.
    pub(crate) fn take_files(&mut self, wanted: usize) -> Result<Vec<OwnedFd>, Garbled> {
        let found = self.files.len();
        if found < wanted {
            return Err(Garbled::Files { wanted, found });
        }
        Ok(self.files.drain(..wanted).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write};
    use std::os::unix::net::UnixStream;

    use penstock_engine::memory::Maker;

    use super::*;
    use crate::protocol::{FromConsumer, MAX_BODY_BYTES};
    use crate::region::SharedMemory;

    fn ack(seq: u64) -> FromConsumer {
        FromConsumer::Ack { seq }
    }

    #[test]
    fn frames_of_any_size_arrive_complete_and_in_order_with_their_files() {
        let (here, there) = UnixStream::pair().unwrap();
        let memory = SharedMemory::default();
        let mapped: Vec<_> = (0..3).map(|_| memory.make(4096).unwrap()).collect();
        let region = |place: usize| memory.find(mapped[place].as_ref()).unwrap().0;
        let body = Bytes::from(vec![7; 1 << 20]);
        let mut frames = VecDeque::from([
            Outgoing::with_body(&ack(1), body.clone(), vec![region(0), region(1)]),
            Outgoing::new(&ack(2)),
            Outgoing::with_body(&ack(3), Bytes::new(), vec![region(2)]),
        ]);
        let mut incoming = Incoming::new(MAX_BODY_BYTES);
        let mut seen = Vec::new();
        while seen.len() < 3 {
            if let Some(frame) = frames.front_mut()
                && frame.send(&here).unwrap()
            {
                frames.pop_front();
            }
            incoming.read(&there).unwrap();
            while let Some((message, body)) = incoming.take::<FromConsumer>().unwrap() {
                let files = [2, 0, 1][seen.len()];
                assert_eq!(incoming.take_files(files).unwrap().len(), files);
                seen.push((message, body.len()));
            }
        }
        assert_eq!(seen, [(ack(1), body.len()), (ack(2), 0), (ack(3), 0)]);
        assert!(incoming.take_files(1).is_err());
        drop(here);
        assert_eq!(incoming.read(&there).unwrap(), Read::End);
    }

    #[test]
    fn invalid_frames_are_refused_before_memory_is_allocated() {
        let garbled = |bytes: &[u8]| {
            let (mut here, there) = UnixStream::pair().unwrap();
            here.write_all(bytes).unwrap();
            let mut incoming = Incoming::new(0);
            incoming.read(&there).unwrap();
            incoming.take::<FromConsumer>().unwrap_err().to_string()
        };
        assert!(garbled(b"GET / HTTP/1.1\r\n").starts_with("a frame has a head of"));
        assert!(garbled(&[0, 0, 0, 0, 1, 0, 0, 0]).contains("a body of 1"));
        assert_eq!(
            garbled(&[2, 0, 0, 0, 0, 0, 0, 0, b'{', b'}']),
            "the header of a frame is not a valid message"
        );
    }

    #[test]
    fn unexpected_files_are_closed() {
        let (here, there) = UnixStream::pair().unwrap();
        let memory = SharedMemory::default();
        let mapped = memory.make(4096).unwrap();
        let region = memory.find(mapped.as_ref()).unwrap().0;
        Outgoing::with_body(&ack(1), Bytes::new(), vec![region]).send(&here).unwrap();
        let mut incoming = Incoming::new(0);
        incoming.read(&there).unwrap();
        assert!(incoming.files.is_empty());
        let mut rest = Vec::new();
        drop(here);
        File::from(OwnedFd::from(there)).read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty() && incoming.take::<FromConsumer>().unwrap().is_some());
    }
}
