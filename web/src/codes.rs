//! Codes of sign-in links.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::token::{TokenError, random_text};
use crate::tokens::{TokenDigest, digest};

/// Time in which a code can be used.
pub(crate) const LIFETIME: Duration = Duration::from_secs(600);
/// Codes that are valid at a time; of more, the oldest end.
const MOST: usize = 16;

/// Codes that open a session each, once, and end after [`LIFETIME`]. A link may hold one where it must not hold a token: links stay
/// in logs of terminals and in the history of a browser.
#[derive(Debug, Default)]
pub(crate) struct SignInCodes(Mutex<VecDeque<Code>>);

#[derive(Debug)]
struct Code {
    digest: [u8; 32],
    until: Instant,
    token: TokenDigest,
}

impl SignInCodes {
    /// Makes a code for the holder of a token.
    pub(crate) fn add(&self, token: TokenDigest, now: Instant) -> Result<String, TokenError> {
        let code = random_text()?;
        let mut codes = self.lock();
        if codes.len() == MOST {
            codes.pop_front();
        }
        codes.push_back(Code { digest: digest(code.as_bytes()), until: now + LIFETIME, token });
        Ok(code)
    }

    /// Uses a code up; gives the token for which it was made. `None` if it is no code, was used, or has ended.
    pub(crate) fn take(&self, code: &str, now: Instant) -> Option<TokenDigest> {
        // The time of a comparison of digests tells nothing about the codes.
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
    fn a_code_is_good_once_and_for_a_while() {
        let (codes, now) = (SignInCodes::default(), Instant::now());
        let (first, second) = (codes.add(TOKEN, now).unwrap(), codes.add(TOKEN, now).unwrap());
        assert_eq!((codes.take("", now), codes.take(&first[1..], now)), (None, None));
        assert_eq!((codes.take(&first, now), codes.take(&first, now)), (Some(TOKEN), None));
        assert_eq!(codes.take(&second, now + LIFETIME), None);
        let late = codes.add(TOKEN, now).unwrap();
        assert_eq!(codes.take(&late, now + LIFETIME - Duration::from_secs(1)), Some(TOKEN));
    }

    #[test]
    fn the_oldest_of_too_many_codes_end() {
        let (codes, now) = (SignInCodes::default(), Instant::now());
        let made: Vec<String> = (0..=MOST).map(|_| codes.add(TOKEN, now).unwrap()).collect();
        assert_eq!(codes.take(&made[0], now), None);
        assert!(made[1..].iter().all(|code| codes.take(code, now) == Some(TOKEN)));
    }
}
