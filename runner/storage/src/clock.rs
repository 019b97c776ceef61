//! The one place of this crate that reads the time.

use std::time::Instant;

/// The present moment.
#[expect(
    clippy::disallowed_methods,
    reason = "the one reading of time here; ops report what their reads took"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
