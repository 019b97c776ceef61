//! Substitute for the runner in native builds, for `cargo test` of a stage.
//!
//! All state belongs to the calling thread, so tests do not disturb each other.
//!
//! ```
//! use penstock_guest::{prelude::*, testing};
//!
//! testing::set_asset("words.txt", b"one two");
//! assert_eq!(asset("words.txt").unwrap(), b"one two");
//! count("kept", 2.0);
//! assert_eq!(testing::counter("kept"), 2.0);
//! ```

use std::fmt;

use crate::host::Level;
use crate::host::backend::{HOST, HostState};
use crate::item::{Item, Outcome};
use crate::stage::Stage;

/// Log lines so far, oldest first.
pub fn lines() -> Vec<(Level, String)> {
    HOST.with_borrow(|host| host.lines.clone())
}

/// Sum of a counter; 0 if nothing was added to it.
pub fn counter(name: &str) -> f64 {
    HOST.with_borrow(|host| host.counters.get(name).copied().unwrap_or(0.0))
}

/// Makes an asset available to the stage.
pub fn set_asset(name: &str, bytes: &[u8]) {
    HOST.with_borrow_mut(|host| host.assets.insert(name.to_owned(), bytes.to_vec()));
}

/// Sets the memory that the stage may have, in bytes; 256 MiB by default, as in a pipeline.
pub fn set_memory_limit(bytes: u64) {
    HOST.with_borrow_mut(|host| host.memory_limit = Some(bytes));
}

/// Removes all log lines, counters and assets, and sets the default limit of memory.
pub fn reset() {
    HOST.with_borrow_mut(|host| *host = HostState::default());
}

/// The stage `S` as the runner would create it: initialised with the text of `params`.
///
/// For a stage that is the function `upper`, the type is also `upper`: `testing::Instance::<upper>::new("{}")`.
pub struct Instance<S>(S);

// Not derived, so that a stage need not implement `Debug` for `Instance::new(...).unwrap_err()`.
impl<S> fmt::Debug for Instance<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Instance")
    }
}

impl<S: Stage> Instance<S> {
    /// Creates an instance. Fails in the cases in which `init` of the module fails.
    pub fn new(params: &str) -> Result<Self, String> {
        S::init(params).map(Self)
    }

    /// Returns one outcome per item, in order.
    pub fn process(&mut self, items: Vec<Item>) -> Vec<Outcome> {
        self.0.process(items)
    }

    /// Returns the samples that the stage held back, at the end of an epoch.
    pub fn finish(&mut self) -> Vec<Item> {
        self.0.finish()
    }

    /// Returns the state between samples, of a stage that saves it.
    pub fn save(&self) -> Vec<u8> {
        self.0.save()
    }

    /// Continues from a state that another instance with these params has saved.
    pub fn load(&mut self, saved: &[u8]) -> Result<(), String> {
        self.0.load(saved)
    }
}

/// Manifest of a module that exports the stage `S`, as JSON.
pub fn manifest<S: Stage>() -> String {
    S::MANIFEST.text()
}
