//! Secrets that are issued to the holders of tokens: codes of sign-in links, and sessions of browsers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::operator_token::{TokenError, random_text};
use super::tokens::{TokenDigest, digest};

/// Secrets of one kind in bounded number, each issued to the holder of a token and valid until it expires. If there is no room, a new
/// secret replaces the oldest one of its token, or, if the token has none, the oldest one of the token that has most.
#[derive(Debug)]
pub(crate) struct Issued<T> {
    most: usize,
    /// Secrets in the order in which they were issued.
    secrets: Mutex<VecDeque<Secret<T>>>,
}

#[derive(Debug)]
struct Secret<T> {
    /// SHA-256 of the secret, so that the time of a comparison reveals nothing about the secret.
    digest: [u8; 32],
    until: T,
    token: TokenDigest,
}

impl<T: Copy + Ord> Issued<T> {
    /// Keeps at most `most` secrets; one token may have half of them.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, secrets: Mutex::default() }
    }

    pub(crate) fn issue(&self, token: TokenDigest, now: T, until: T) -> Result<String, TokenError> {
        let secret = random_text()?;
        let mut secrets = self.lock();
        secrets.retain(|secret| now < secret.until);
        if let Some(surplus) = self.surplus(&secrets, token) {
            secrets.remove(surplus);
        }
        secrets.push_back(Secret { digest: digest(secret.as_bytes()), until, token });
        Ok(secret)
    }

    /// Token of the first valid secret with one of these digests.
    pub(crate) fn find(&self, digests: &[[u8; 32]], now: T) -> Option<TokenDigest> {
        let is_it = |secret: &&Secret<T>| digests.contains(&secret.digest) && now < secret.until;
        self.lock().iter().find(is_it).map(|secret| secret.token)
    }

    /// Removes all secrets with these digests; returns the token of the first one that was valid.
    pub(crate) fn take(&self, digests: &[[u8; 32]], now: T) -> Option<TokenDigest> {
        let mut found = None;
        self.lock().retain(|secret| {
            let is_it = digests.contains(&secret.digest);
            if is_it && now < secret.until {
                found = found.or(Some(secret.token));
            }
            !is_it
        });
        found
    }

    /// Place of the secret that a further one of this token replaces; `None` if there is room.
    fn surplus(&self, secrets: &VecDeque<Secret<T>>, token: TokenDigest) -> Option<usize> {
        let mut held: HashMap<TokenDigest, usize> = HashMap::new();
        secrets.iter().for_each(|secret| *held.entry(secret.token).or_default() += 1);
        let own = held.get(&token).copied().unwrap_or(0);
        if own < self.most / 2 && secrets.len() < self.most {
            return None;
        }
        let most_held = held.values().max().copied();
        secrets.iter().position(|secret| match own {
            0 => held.get(&secret.token).copied() == most_held,
            _ => secret.token == token,
        })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Secret<T>>> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATOR: TokenDigest = [1; 32];
    const READER: TokenDigest = [2; 32];

    fn issue(issued: &Issued<u32>, token: TokenDigest) -> [u8; 32] {
        digest(issued.issue(token, 0, 10).unwrap().as_bytes())
    }

    fn valid(issued: &Issued<u32>, secrets: &[[u8; 32]]) -> usize {
        secrets.iter().filter(|secret| issued.find(&[**secret], 0).is_some()).count()
    }

    #[test]
    fn a_token_replaces_its_own_oldest_secrets_and_leaves_those_of_others() {
        let issued = Issued::new(6);
        let of_operator = issue(&issued, OPERATOR);
        let of_reader: Vec<_> = (0..100).map(|_| issue(&issued, READER)).collect();
        assert_eq!((valid(&issued, &[of_operator]), valid(&issued, &of_reader[97..])), (1, 3));
        // The other half is left for other tokens, whose own secrets stay, too.
        let more = [issue(&issued, OPERATOR), issue(&issued, OPERATOR)];
        assert_eq!((valid(&issued, &[of_operator]), valid(&issued, &more)), (1, 2));
        issue(&issued, OPERATOR);
        assert_eq!((valid(&issued, &[of_operator]), valid(&issued, &more)), (0, 2));
        assert_eq!((valid(&issued, &of_reader[..97]), valid(&issued, &of_reader[97..])), (0, 3));
    }

    #[test]
    fn a_token_without_a_secret_replaces_the_oldest_of_the_token_that_has_most() {
        let issued = Issued::new(4);
        let first = issue(&issued, OPERATOR);
        let of_reader = [issue(&issued, READER), issue(&issued, READER)];
        let other = issue(&issued, [3; 32]);
        let new = issue(&issued, [4; 32]);
        assert_eq!(
            (valid(&issued, &of_reader[..1]), valid(&issued, &[first, of_reader[1], other, new])),
            (0, 4)
        );
        let newer = issue(&issued, [4; 32]);
        assert_eq!((valid(&issued, &[new]), valid(&issued, &[first, of_reader[1], other, newer])), (0, 4));
    }

    #[test]
    fn expired_secrets_are_invalid_and_make_room() {
        let issued = Issued::new(2);
        let old = issue(&issued, OPERATOR);
        assert_eq!((issued.find(&[old], 9), issued.find(&[old], 10)), (Some(OPERATOR), None));
        let new = issued.issue(READER, 10, 20).unwrap();
        assert_eq!(issued.lock().len(), 1);
        assert_eq!(issued.take(&[old, digest(new.as_bytes())], 11), Some(READER));
        assert_eq!(issued.take(&[digest(new.as_bytes())], 11), None);
    }
}
