//! Progress of a transfer.

use std::io::{self, Read};
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use crate::text::warn;

/// Time between two lines if standard error is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Reader that shows its progress on standard error: a bar on a terminal, a line every few seconds elsewhere.
pub(crate) struct Transfer<R> {
    inner: R,
    label: &'static str,
    total: u64,
    bar: ProgressBar,
    next_line: Duration,
}

impl<R> Transfer<R> {
    pub(crate) fn new(inner: R, label: &'static str, total: u64) -> Self {
        let bar = ProgressBar::new(total).with_message(label);
        let style = ProgressStyle::with_template("{msg} {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { inner, label, total, bar, next_line: LINE_EVERY }
    }
}

impl<R: Read> Read for Transfer<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.bar.inc(count as u64);
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
