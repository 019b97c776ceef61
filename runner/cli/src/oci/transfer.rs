//! Progress and minimum rate of a transfer.

use std::io::{self, Read};
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar};

use crate::progress::style;
use crate::text::warn;

/// Time between two lines if standard error is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Time that a transfer may take in addition to the time for its bytes at [`MIN_RATE`].
const GRACE: Duration = Duration::from_secs(60);
/// Minimum rate of a transfer, in bytes per second.
pub(super) const MIN_RATE: u64 = 16 << 10;

/// Reader that fails if bytes arrive, or leave, below the minimum rate, and shows its progress on standard error: a bar on a
/// terminal, a line every few seconds elsewhere.
pub(crate) struct Transfer<R> {
    inner: R,
    label: &'static str,
    total: u64,
    bar: ProgressBar,
    next_line: Duration,
}

impl<R> Transfer<R> {
    pub(crate) fn new(inner: R, label: &'static str, total: u64) -> Self {
        let style = style("{msg} {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}");
        let bar = ProgressBar::new(total).with_message(label).with_style(style);
        Self { inner, label, total, bar, next_line: LINE_EVERY }
    }
}

impl<R: Read> Read for Transfer<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.bar.inc(count as u64);
        if is_too_slow(self.bar.elapsed(), self.bar.position()) {
            let message = format!("the registry takes or sends less than {} a second", HumanBytes(MIN_RATE));
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        if self.bar.is_hidden() && self.bar.elapsed() >= self.next_line {
            self.next_line = self.bar.elapsed() + LINE_EVERY;
            warn(&format!(
                "{}: {} of {}",
                self.label,
                HumanBytes(self.bar.position()),
                HumanBytes(self.total)
            ));
        }
        Ok(count)
    }
}

impl<R> Drop for Transfer<R> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Returns true if a transfer has moved too few bytes in the time since its start.
fn is_too_slow(elapsed: Duration, bytes: u64) -> bool {
    elapsed > GRACE + Duration::from_secs(bytes / MIN_RATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_of_one_byte_a_second_ends_soon_however_large_it_is_announced() {
        let first = (0..).find(|seconds| is_too_slow(Duration::from_secs(*seconds), *seconds));
        assert_eq!(first, Some(61));
        assert!((0..100_000).all(|seconds| !is_too_slow(Duration::from_secs(seconds), seconds * MIN_RATE)));
    }
}
