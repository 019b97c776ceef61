use std::ptr::without_provenance_mut;

use cudarc::driver::sys::CUstream;

use super::CudaEvent;
use crate::error::DriverError;

/// A stream of the consumer, on which the consumer reads a [`crate::DeviceBuffer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerStream {
    handle: usize,
    /// Set if reads on the stream must wait until the buffer is written.
    waits: bool,
}

/// Error for a number that is not a valid stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid stream {0}: use 1 for the default stream, 2 for the thread's own, -1 for no waiting, or a handle"
)]
pub struct StreamFault(pub i64);

/// The number of a context's default stream, in the driver and in DLPack.
const LEGACY: usize = 1;

/// The number of the calling thread's default stream, in the driver and in DLPack.
const PER_THREAD: usize = 2;

/// DLPack's number for a consumer that synchronises itself.
const NO_WAITING: i64 = -1;

impl ConsumerStream {
    /// The default stream of the context.
    pub const DEFAULT: Self = Self { handle: LEGACY, waits: true };

    /// Returns the stream of DLPack's `__dlpack__(stream=...)`: `None` and 1 are the default stream, 2 is the calling thread's
    /// stream; -1 names no stream: the default stream is used without waiting for the buffer.
    ///
    /// # Safety
    /// Any other number must be the handle of a stream of the buffer's context that lives until the last clone of the buffer is
    /// dropped.
    pub unsafe fn from_dlpack(stream: Option<i64>) -> Result<Self, StreamFault> {
        match stream {
            None => Ok(Self::DEFAULT),
            Some(NO_WAITING) => Ok(Self { handle: LEGACY, waits: false }),
            // DLPack disallows 0, which could mean either default stream.
            Some(number) => match usize::try_from(number) {
                Err(_) | Ok(0) => Err(StreamFault(number)),
                Ok(handle) => Ok(Self { handle, waits: true }),
            },
        }
    }

    /// Makes all later operations of the stream wait for the event.
    pub(crate) fn wait_for(self, event: &CudaEvent) -> Result<(), DriverError> {
        if self.waits { event.make_wait(self.raw()) } else { Ok(()) }
    }

    /// Records the event after all operations in the stream, from any thread.
    pub(crate) fn record(self, event: &CudaEvent) -> Result<(), DriverError> {
        // `PER_THREAD` would refer to the stream of this (releasing) thread instead of the reading thread. The context's default
        // stream waits for the streams of all threads.
        if self.handle == PER_THREAD { Self::DEFAULT.record(event) } else { event.record_on(self.raw()) }
    }

    /// True if both are the same stream.
    pub(crate) fn is(self, other: Self) -> bool {
        self.handle == other.handle
    }

    fn raw(self) -> CUstream {
        without_provenance_mut(self.handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(stream: Option<i64>) -> Result<ConsumerStream, StreamFault> {
        // SAFETY: no operation is put on the stream.
        unsafe { ConsumerStream::from_dlpack(stream) }
    }

    #[test]
    fn streams_are_numbered_as_in_dlpack() {
        assert_eq!(named(None), Ok(ConsumerStream::DEFAULT));
        assert_eq!(named(Some(1)), Ok(ConsumerStream::DEFAULT));
        assert_eq!(named(Some(2)).map(|stream| stream.handle), Ok(PER_THREAD));
        assert_eq!(named(Some(0x7f00_1234)).map(|stream| stream.handle), Ok(0x7f00_1234));
        let silent = named(Some(-1)).unwrap();
        assert!(silent.is(ConsumerStream::DEFAULT) && !silent.waits);
        for none in [0, -2, i64::MIN] {
            assert_eq!(named(Some(none)), Err(StreamFault(none)));
        }
        assert!(StreamFault(0).to_string().contains("invalid stream 0"));
    }
}
