//! One-time codes of sign-in links.

use std::time::Duration;

use tokio::time::Instant;

use crate::issued::Issued;
use crate::token::TokenError;
use crate::tokens::{TokenDigest, digest};

/// Lifetime of a code after its creation.
pub(crate) const LIFETIME: Duration = Duration::from_secs(600);
/// Maximum number of valid codes.
const MOST: usize = 16;

/// One-time codes. Each code opens one session within [`LIFETIME`]. A link contains a code rather than a token, because links
/// remain in terminal logs and in the history of a browser.
#[derive(Debug)]
pub(crate) struct SignInCodes(Issued<Instant>);

impl Default for SignInCodes {
    fn default() -> Self {
        Self(Issued::new(MOST))
    }
}

impl SignInCodes {
    /// Creates a code for the holder of a token.
    pub(crate) fn add(&self, token: TokenDigest, now: Instant) -> Result<String, TokenError> {
        self.0.issue(token, now, now + LIFETIME)
    }

    /// Consumes a code; returns the token for which it was created. `None` if the code is unknown, used or expired.
    pub(crate) fn take(&self, code: &str, now: Instant) -> Option<TokenDigest> {
        self.0.take(&[digest(code.as_bytes())], now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: TokenDigest = [7; 32];

    #[test]
    fn a_code_works_once_and_expires() {
        let (codes, now) = (SignInCodes::default(), Instant::now());
        let (first, second) = (codes.add(TOKEN, now).unwrap(), codes.add(TOKEN, now).unwrap());
        assert_eq!((codes.take("", now), codes.take(&first[1..], now)), (None, None));
        assert_eq!((codes.take(&first, now), codes.take(&first, now)), (Some(TOKEN), None));
        assert_eq!(codes.take(&second, now + LIFETIME), None);
        let late = codes.add(TOKEN, now).unwrap();
        assert_eq!(codes.take(&late, now + LIFETIME - Duration::from_secs(1)), Some(TOKEN));
    }
}
