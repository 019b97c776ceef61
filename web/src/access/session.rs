//! Session cookies, which a browser holds instead of a token.

use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, header};
use cookie::{Cookie, SameSite};

use super::issued::Issued;
use super::operator_token::TokenError;
use super::tokens::{TokenDigest, digest};

const NAME: &str = "penstock_session";
const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of open sessions.
const MOST: usize = 1_000;

/// Sessions of browsers. Each belongs to the token that opened it and lasts a week; all end with the server.
#[derive(Debug)]
pub(crate) struct Sessions(Issued<SystemTime>);

impl Default for Sessions {
    fn default() -> Self {
        Self(Issued::new(MOST))
    }
}

impl Sessions {
    /// Opens a session for the holder of a token; returns its cookie. A `secure` cookie is sent over TLS only.
    pub(crate) fn begin(
        &self,
        token: TokenDigest,
        now: SystemTime,
        secure: bool,
    ) -> Result<String, TokenError> {
        Ok(cookie(self.0.issue(token, now, now + LIFETIME)?, LIFETIME, secure))
    }

    /// Ends all sessions whose cookies are in the request headers. Returns an expired cookie, which deletes the cookie in the
    /// browser.
    pub(crate) fn end(&self, headers: &HeaderMap) -> String {
        self.0.take(&digests(headers), SystemTime::now());
        cookie(String::new(), Duration::ZERO, false)
    }

    /// Digest of the token that opened the session of a request; `None` without a valid session.
    pub(crate) fn token(&self, headers: &HeaderMap, now: SystemTime) -> Option<TokenDigest> {
        self.0.find(&digests(headers), now)
    }
}

fn digests(headers: &HeaderMap) -> Vec<[u8; 32]> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|sent| sent.to_str().ok());
    let cookies = cookies.flat_map(Cookie::split_parse).filter_map(Result::ok);
    cookies.filter(|cookie| cookie.name() == NAME).map(|cookie| digest(cookie.value().as_bytes())).collect()
}

fn cookie(value: String, age: Duration, secure: bool) -> String {
    let cookie =
        Cookie::build((NAME, value)).path("/").http_only(true).secure(secure).same_site(SameSite::Strict);
    cookie.max_age(cookie::time::Duration::seconds(age.as_secs() as i64)).build().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: TokenDigest = [7; 32];

    /// Request headers of a browser that sends the cookie together with another cookie.
    fn sent(set: &str) -> HeaderMap {
        let cookies = format!("theme=dark; {}", set.split(';').next().unwrap());
        HeaderMap::from_iter([(header::COOKIE, cookies.parse().unwrap())])
    }

    #[test]
    fn a_session_is_open_for_a_week_or_until_it_is_ended() {
        let (sessions, now) = (Sessions::default(), SystemTime::now());
        let set = sessions.begin(TOKEN, now, false).unwrap();
        assert!(set.contains("HttpOnly; SameSite=Strict; Path=/; Max-Age=604800"), "{set}");
        let (mine, other) = (sent(&set), sent(&sessions.begin([8; 32], now, true).unwrap()));
        assert_eq!(sessions.token(&mine, now + LIFETIME - Duration::from_secs(2)), Some(TOKEN));
        assert_eq!(sessions.token(&mine, now + LIFETIME), None);
        assert!(sessions.end(&mine).contains("Max-Age=0"));
        assert_eq!((sessions.token(&mine, now), sessions.token(&other, now)), (None, Some([8; 32])));
    }

    #[test]
    fn a_cookie_for_tls_is_sent_over_tls_only() {
        let (sessions, now) = (Sessions::default(), SystemTime::now());
        assert!(sessions.begin(TOKEN, now, true).unwrap().contains("; Secure"));
        assert!(!sessions.begin(TOKEN, now, false).unwrap().contains("Secure"));
    }

    #[test]
    fn forged_cookies_are_refused() {
        let (sessions, now) = (Sessions::default(), SystemTime::now());
        sessions.begin(TOKEN, now, false).unwrap();
        for forged in ["", "0", &"0".repeat(64)] {
            assert_eq!(sessions.token(&sent(&format!("{NAME}={forged}")), now), None, "{forged}");
        }
    }
}
