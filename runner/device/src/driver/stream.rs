use std::ptr::without_provenance_mut;

use cudarc::driver::sys::CUstream;

use super::CudaEvent;
use crate::error::DriverError;

/// A stream on which somebody else reads a buffer of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerStream {
    handle: usize,
    /// Whether it is to go on only when the buffer is written.
    waits: bool,
}

/// A number that names no stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "found the stream {0}, which names none: use 1 for the default stream, 2 for the thread's own, -1 for no waiting, or a handle"
)]
pub struct StreamFault(pub i64);

/// The driver's own number for the default stream of a context, and DLPack's.
const LEGACY: usize = 1;

/// The same for the default stream of whichever thread says it.
const PER_THREAD: usize = 2;

/// What DLPack says for "the consumer waits by itself".
const NO_WAITING: i64 = -1;

impl ConsumerStream {
    /// The default stream of the context.
    pub const DEFAULT: Self = Self { handle: LEGACY, waits: true };

    /// The stream that DLPack's `__dlpack__(stream=...)` names: `None` and 1 the default one, 2 the calling thread's own, -1
    /// none that is known, so that it is taken to be the default one and does not wait.
    ///
    /// # Safety
    /// Any other number is the handle of a stream of the buffer's context, which lives until the last clone of the buffer is
    /// dropped.
    pub unsafe fn from_dlpack(stream: Option<i64>) -> Result<Self, StreamFault> {
        match stream {
            None => Ok(Self::DEFAULT),
            Some(NO_WAITING) => Ok(Self { handle: LEGACY, waits: false }),
            // 0 may mean either of two, says DLPack.
            Some(number) => match usize::try_from(number) {
                Err(_) | Ok(0) => Err(StreamFault(number)),
                Ok(handle) => Ok(Self { handle, waits: true }),
            },
        }
    }

    /// It goes on after the event only.
    pub(crate) fn wait_for(self, event: &CudaEvent) -> Result<(), DriverError> {
        if self.waits { event.before(self.raw()) } else { Ok(()) }
    }

    /// Puts the event behind all that is in it, from any thread.
    pub(crate) fn record(self, event: &CudaEvent) -> Result<(), DriverError> {
        // Here a thread's own stream would be that of who lets go, not of who reads. The context's waits for those of all threads.
        if self.handle == PER_THREAD { Self::DEFAULT.record(event) } else { event.behind(self.raw()) }
    }

    /// Whether it is the same stream.
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
        // SAFETY: nothing is done on it.
        unsafe { ConsumerStream::from_dlpack(stream) }
    }

    #[test]
    fn streams_are_named_as_dlpack_says() {
        assert_eq!(named(None), Ok(ConsumerStream::DEFAULT));
        assert_eq!(named(Some(1)), Ok(ConsumerStream::DEFAULT));
        assert_eq!(named(Some(2)).map(|stream| stream.handle), Ok(PER_THREAD));
        assert_eq!(named(Some(0x7f00_1234)).map(|stream| stream.handle), Ok(0x7f00_1234));
        let silent = named(Some(-1)).unwrap();
        assert!(silent.is(ConsumerStream::DEFAULT) && !silent.waits);
        for none in [0, -2, i64::MIN] {
            assert_eq!(named(Some(none)), Err(StreamFault(none)));
        }
        assert!(StreamFault(0).to_string().contains("found the stream 0"));
    }
}
