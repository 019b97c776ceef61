//! Passes log events of runs to Python's `logging`.
//!
//! Events are queued until Python code calls into the package: no thread of a run waits for the GIL, which may no longer exist
//! when a program ends.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Mutex;

use penstock_engine::lock::locked;
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Maximum number of queued events; the oldest are dropped.
const MOST: usize = 1000;

static WAITING: Mutex<VecDeque<Line>> = Mutex::new(VecDeque::new());

/// An event in the form of Python's `logging`.
struct Line {
    /// Level by Python's number: 30 for a warning, 40 for an error.
    level: u32,
    text: String,
}

/// Subscriber that queues warnings and errors of this process.
struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let level = if *event.metadata().level() == Level::ERROR { 40 } else { 30 };
        let mut line = Line { level, text: String::new() };
        event.record(&mut line);
        let mut lines = locked(&WAITING);
        if lines.len() == MOST {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    // Never called, since spans are not enabled.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }
}

impl Line {
    /// Adds a field: the message first, then each field with its name.
    fn add(&mut self, field: &Field, value: String) {
        if field.name() == "message" {
            self.text.insert_str(0, &value);
        } else {
            self.text.push_str(&format!(", {}: {value}", field.name()));
        }
    }
}

/// Starts queueing events for `flush_to_python`. Not called on import: the command writes events itself.
pub(crate) fn start_queueing() {
    // Another thread may have set the same subscriber first.
    tracing::subscriber::set_global_default(Listener).ok();
}

/// Passes queued events to the logger `penstock`.
pub(crate) fn flush_to_python(py: Python<'_>) -> PyResult<()> {
    let lines = std::mem::take(&mut *locked(&WAITING));
    if lines.is_empty() {
        return Ok(());
    }
    let logger = py.import("logging")?.call_method1("getLogger", ("penstock",))?;
    for Line { level, text } in lines {
        logger.call_method1("log", (level, text))?;
    }
    Ok(())
}
