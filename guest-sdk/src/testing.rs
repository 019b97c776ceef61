//! The stand-in for the runner in native builds: what `cargo test` of a stage sees and sets.
//!
//! Everything here belongs to the calling thread, so tests do not disturb each other.
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

/// The log lines so far, oldest first.
pub fn lines() -> Vec<(Level, String)> {
    HOST.with_borrow(|host| host.lines.clone())
}

/// The sum of a counter; 0 when nothing was added to it.
pub fn counter(name: &str) -> f64 {
    HOST.with_borrow(|host| host.counters.get(name).copied().unwrap_or(0.0))
}

/// Makes an asset available.
pub fn set_asset(name: &str, bytes: &[u8]) {
    HOST.with_borrow_mut(|host| host.assets.insert(name.to_owned(), bytes.to_vec()));
}

/// Forgets all lines, counters and assets.
pub fn reset() {
    HOST.with_borrow_mut(|host| *host = HostState::default());
}

/// The stage `S` as the runner would set it up: initialised with the text of `params`.
///
/// For the function `upper` of a stage, the type is `upper` too: `testing::Instance::<upper>::new("{}")`.
pub struct Instance<S>(S);

// By hand: a stage need not be printable for `Instance::new(...).unwrap_err()`.
impl<S> fmt::Debug for Instance<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Instance")
    }
}

impl<S: Stage> Instance<S> {
    /// An instance. Fails as `init` of the module would.
    pub fn new(params: &str) -> Result<Self, String> {
        S::init(params).map(Self)
    }

    /// One outcome per item, in order.
    pub fn process(&mut self, items: Vec<Item>) -> Vec<Outcome> {
        self.0.process(items)
    }

    /// What the stage held back, at the end of an epoch.
    pub fn finish(&mut self) -> Vec<Item> {
        self.0.finish()
    }
}

/// The manifest that a module of the stage `S` carries, as JSON.
pub fn manifest<S: Stage>() -> String {
    S::MANIFEST.text()
}
