//! Reasons why data cannot be read.

/// Reason why a value, or what contains it, cannot be read: the end of a sentence about it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Reason(String);

impl From<String> for Reason {
    fn from(reason: String) -> Self {
        Self(reason)
    }
}

impl From<&str> for Reason {
    fn from(reason: &str) -> Self {
        Self(reason.to_owned())
    }
}

impl From<Reason> for String {
    fn from(Reason(reason): Reason) -> Self {
        reason
    }
}
