//! Errors with which a stage refuses a sample.

use std::fmt;

/// Result of a stage: a value, or the reason for refusing the sample.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason for refusing a sample because of its data. The runner counts the refusal as a failure of the sample and applies the
/// stage's `on_error`. Use a panic for a bug of the stage itself.
///
/// Any [`std::error::Error`] converts to it by `?`; its causes are joined by `: `.
pub struct Error {
    message: String,
}

/// Extension trait that adds context to an error.
pub trait Context<T> {
    /// Puts `context` and `: ` before the error's message; `None` becomes an error whose message is `context`.
    fn context(self, context: impl fmt::Display) -> Result<T>;
}

impl Error {
    /// Creates an error with this message, which should state what was found and what is valid.
    pub fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string() }
    }

    /// Message that the runner shows with the sample's key.
    pub fn message(&self) -> &str {
        &self.message
    }
}

// `Error` does not implement `std::error::Error`: that would conflict with this conversion, which makes `?` work.
impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            message.push_str(": ");
            message.push_str(&inner.to_string());
            cause = inner.source();
        }
        Self { message }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl<T, E: Into<Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, context: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Error::new(format_args!("{context}: {}", error.into().message)))
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, context: impl fmt::Display) -> Result<T> {
        self.ok_or_else(|| Error::new(context))
    }
}

/// Refuses the sample: returns an [`Error`] with the formatted message.
#[macro_export]
macro_rules! bail {
    ($($message:tt)+) => {
        return ::core::result::Result::Err($crate::Error::new(::core::format_args!($($message)+)))
    };
}

/// Refuses the sample with the formatted message unless the condition is true.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            $crate::bail!($($message)+);
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(text: &str) -> Result<u16> {
        ensure!(!text.is_empty(), "the port is empty");
        Ok(text.parse::<u16>()?)
    }

    #[test]
    fn any_standard_error_converts_to_an_error() {
        assert_eq!(port("80").unwrap(), 80);
        assert_eq!(port("").unwrap_err().message(), "the port is empty");
        assert_eq!(port("x").unwrap_err().message(), "invalid digit found in string");
    }

    #[test]
    fn context_precedes_the_message() {
        let error = port("x").context("reading the port").unwrap_err();
        assert_eq!(error.message(), "reading the port: invalid digit found in string");
        assert_eq!(None::<u8>.context("no port").unwrap_err().message(), "no port");
    }
}
