//! Log lines of guests, escaped and limited in length, rate and number.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock_engine::lock::locked;
use penstock_types::text::printable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum length of a line, in bytes; the rest of a longer line is cut off.
pub(crate) const MAX_LINE_BYTES: usize = 1 << 10;
/// Maximum number of bytes that one call may log; further lines are counted but not kept.
pub(crate) const MAX_CALL_BYTES: usize = 64 << 10;
/// Maximum number of bytes per second that all instances of a stage may log; further lines are counted but not kept.
pub(crate) const MAX_BYTES_PER_S: usize = 1 << 20;
/// Minimum number of bytes that a line counts towards the limits, so that the number of short lines is limited, too.
pub(crate) const MIN_LINE_BYTES: usize = 256;
/// Number of log lines of a stage that are kept: the most recent ones.
pub(crate) const KEPT_LINES: usize = 1_000;

/// Severity of a line, as set by the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

/// Line that a guest logged, escaped and cut to 1 KiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LogLine {
    /// Sequence number of the line among the kept lines of its stage, from 0.
    pub number: u64,
    /// Severity of the line.
    pub level: LogLevel,
    /// Text of the line.
    pub message: String,
    /// Time at which the line was logged, by the machine's monotonic clock.
    #[serde(skip)]
    pub at: Duration,
}

/// Most recent log lines of a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LogLines {
    /// Up to 1,000 lines, oldest first.
    pub lines: Vec<LogLine>,
    /// Number of lines that were dropped because the stage logged too much.
    pub dropped: u64,
}

#[derive(Debug)]
pub(crate) struct LogSink {
    stage: String,
    dropped: AtomicU64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<LogLine>,
    next: u64,
    second: u64,
    bytes_this_second: usize,
}

impl LogSink {
    pub(crate) fn new(stage: &str) -> Self {
        Self { stage: stage.into(), dropped: AtomicU64::new(0), kept: Mutex::default() }
    }

    /// Keeps the line and passes it to `tracing`, unless too much was logged in the current second.
    pub(crate) fn log(&self, level: LogLevel, message: &str, now: Duration) {
        let message = printable(message, MAX_LINE_BYTES);
        if !self.keep(level, &message, now) {
            return self.count_dropped();
        }
        let stage = self.stage.as_str();
        match level {
            LogLevel::Debug => tracing::debug!(stage, message),
            LogLevel::Info => tracing::info!(stage, message),
            LogLevel::Warn => tracing::warn!(stage, message),
            LogLevel::Error => tracing::error!(stage, message),
        }
    }

    pub(crate) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the lines from this number on that are still kept.
    pub(crate) fn since(&self, number: u64) -> LogLines {
        let kept = locked(&self.kept);
        let first = kept.next - kept.lines.len() as u64;
        let skipped = usize::try_from(number.saturating_sub(first)).unwrap_or(usize::MAX);
        LogLines {
            lines: kept.lines.iter().skip(skipped).cloned().collect(),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }

    fn keep(&self, level: LogLevel, message: &str, now: Duration) -> bool {
        let mut kept = locked(&self.kept);
        if kept.second != now.as_secs() {
            kept.second = now.as_secs();
            kept.bytes_this_second = 0;
        }
        kept.bytes_this_second += message.len().max(MIN_LINE_BYTES);
        if kept.bytes_this_second > MAX_BYTES_PER_S {
            return false;
        }
        if kept.lines.len() == KEPT_LINES {
            kept.lines.pop_front();
        }
        let number = kept.next;
        kept.next += 1;
        kept.lines.push_back(LogLine { number, level, message: message.into(), at: now });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(5);

    #[test]
    fn surplus_lines_of_a_second_are_dropped_and_counted() {
        let sink = LogSink::new("s");
        for _ in 0..5000 {
            sink.log(LogLevel::Info, "x", NOW);
        }
        assert_eq!(sink.since(0).dropped, 5000 - (MAX_BYTES_PER_S / MIN_LINE_BYTES) as u64);
        sink.log(LogLevel::Info, "later", NOW + Duration::from_secs(1));
        let seen = sink.since(0);
        assert_eq!(seen.lines.len(), KEPT_LINES);
        assert_eq!(seen.lines.last().unwrap().message, "later");
        assert_eq!(seen.lines.last().unwrap().number, 4096);
        let newest = sink.since(4095).lines;
        assert_eq!(newest.iter().map(|line| line.number).collect::<Vec<_>>(), [4095, 4096]);
        assert_eq!(newest[1].at, NOW + Duration::from_secs(1));
        assert_eq!((sink.since(0).lines.len(), sink.since(9999).lines.len()), (KEPT_LINES, 0));
    }

    #[test]
    fn a_long_line_is_cut_off_and_control_characters_are_escaped() {
        let sink = LogSink::new("s");
        sink.log(LogLevel::Warn, &format!("\x1b[2J{}", "y".repeat(1 << 20)), NOW);
        let line = sink.since(0).lines.remove(0);
        assert!(line.message.starts_with("\\u{1b}[2Jyyy"));
        assert!(line.message.len() <= MAX_LINE_BYTES + "…".len());
    }
}
