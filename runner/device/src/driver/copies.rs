use std::ffi::c_void;

use bytes::Bytes;

use super::{DeviceRegion, DriverError, Event, Stream};

/// Copies to a device that were begun on one stream, and what they read. That is let go once they are known to be done, and
/// never if that does not come to be known: the device reads on its own time.
#[derive(Default)]
pub(crate) struct Copies {
    reads: Vec<Bytes>,
}

impl Copies {
    /// Begins a copy. From pinned memory it goes on by itself; from any other the driver reads it at once, and waits for all
    /// that is in the stream.
    ///
    /// # Panics
    /// When the bytes have no room there.
    pub(crate) fn begin(
        &mut self,
        stream: &Stream,
        bytes: Bytes,
        to: &DeviceRegion,
        at: usize,
    ) -> Result<(), DriverError> {
        let len = bytes.len();
        assert!(at <= to.len() && len <= to.len() - at, "there are {} bytes of room", to.len());
        if len == 0 {
            return Ok(());
        }
        let (from, to) = (bytes.as_ptr().cast::<c_void>(), to.address() + at as u64);
        // Kept whatever the driver says: it may have begun.
        self.reads.push(bytes);
        stream.context().call(
            |all| &all.copy_to_device,
            // SAFETY: both sides have so many bytes, and what is read is kept until it was.
            |copy| unsafe { copy(to, from, len, stream.handle()) },
        )
    }

    /// Whether they are done; `behind` was recorded behind them on their stream.
    pub(crate) fn are_done(&mut self, behind: &Event) -> Result<bool, DriverError> {
        let are_done = behind.is_complete()?;
        if are_done {
            self.reads.clear();
        }
        Ok(are_done)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        std::mem::take(&mut self.reads).into_iter().for_each(std::mem::forget);
    }
}
