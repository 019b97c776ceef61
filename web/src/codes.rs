//! One-time codes of sign-in links.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::token::{TokenError, random_text};
use crate::tokens::{TokenDigest, digest};

/// Lifetime of a code after its creation.
pub(crate) const LIFETIME: Duration = Duration::from_secs(600);
/// Maximum number of valid codes; a further code replaces the oldest.
const MOST: usize = 16;

/// One-time codes. Each code opens one session within [`LIFETIME`]. A link contains a code rather than a token, because links
/// remain in terminal logs and in the history of a browser.
#[derive(Debug, Default)]
pub(crate) struct SignInCodes(Mutex<VecDeque<Code>>);

#[derive(Debug)]
struct Code {
    digest: [u8; 32],
    until: Instant,
    token: TokenDigest,
}

impl SignInCodes {
    /// Creates a code for the holder of a token.
    pub(crate) fn add(&self, token: TokenDigest, now: Instant) -> Result<String, TokenError> {
        let code = random_text()?;
        let mut codes = self.lock();
        if codes.len() == MOST {
            codes.pop_front();
        }
        codes.push_back(Code { digest: digest(code.as_bytes()), until: now + LIFETIME, token });
        Ok(code)
    }

    /// Consumes a code; returns the token for which it was created. `None` if the code is unknown, used or expired.
    pub(crate) fn take(&self, code: &str, now: Instant) -> Option<TokenDigest> {
        // Digests are compared instead of codes, so that the time of the comparison reveals nothing about the codes.
        let digest = digest(code.as_bytes());
        let mut codes = self.lock();
        codes.retain(|code| now < code.until);
        let found = codes.iter().position(|code| code.digest == digest);
        found.and_then(|found| codes.remove(found)).map(|code| code.token)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Code>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    #[test]
    fn a_code_beyond_the_limit_replaces_the_oldest() {
        let (codes, now) = (SignInCodes::default(), Instant::now());
        let made: Vec<String> = (0..=MOST).map(|_| codes.add(TOKEN, now).unwrap()).collect();
        assert_eq!(codes.take(&made[0], now), None);
        assert!(made[1..].iter().all(|code| codes.take(code, now) == Some(TOKEN)));
    }
}
