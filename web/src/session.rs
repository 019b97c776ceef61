//! The cookie that a browser holds instead of the token.

use std::time::{Duration, SystemTime};

use cookie::{Cookie, SameSite};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::token::Token;

const NAME: &str = "penstock_session";
const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// A cookie that proves for a week that its holder knew the token. It needs no memory here, survives a restart, and ends with
/// the token.
pub(crate) fn begin(token: &Token, now: SystemTime) -> String {
    let until = seconds(now + LIFETIME);
    cookie(format!("{until}.{}", proof(token, until)), LIFETIME)
}

/// The cookie that ends it.
pub(crate) fn end() -> String {
    cookie(String::new(), Duration::ZERO)
}

fn cookie(value: String, age: Duration) -> String {
    let cookie = Cookie::build((NAME, value)).path("/").http_only(true).same_site(SameSite::Strict);
    cookie.max_age(cookie::time::Duration::seconds(age.as_secs() as i64)).build().to_string()
}

/// Returns true if one of these cookies proves knowledge of the token.
pub(crate) fn is_open(token: &Token, cookies: &str, now: SystemTime) -> bool {
    let ours = |cookie: Cookie<'_>| {
        let (until, offered) = cookie.value().split_once('.')?;
        let until = until.parse().ok().filter(|until| *until > seconds(now))?;
        bool::from(proof(token, until).as_bytes().ct_eq(offered.as_bytes())).then_some(())
    };
    Cookie::split_parse(cookies)
        .filter_map(Result::ok)
        .filter(|cookie| cookie.name() == NAME)
        .any(|cookie| ours(cookie).is_some())
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn proof(token: &Token, until: u64) -> String {
    let mut authenticator = Hmac::<Sha256>::new_from_slice(token.bytes()).expect("any length is a key");
    authenticator.update(b"penstock session until ");
    authenticator.update(&until.to_le_bytes());
    authenticator.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Token {
        Token::new(text).unwrap()
    }

    #[test]
    fn a_cookie_is_good_for_a_week_and_for_its_token() {
        let (mine, now) = (token("0123456789abcdef"), SystemTime::now());
        let header = begin(&mine, now);
        assert!(header.contains("HttpOnly; SameSite=Strict; Path=/; Max-Age=604800"), "{header}");
        let sent = format!("theme=dark; {}", header.split(';').next().unwrap());
        assert!(is_open(&mine, &sent, now));
        assert!(is_open(&mine, &sent, now + LIFETIME - Duration::from_secs(2)));
        assert!(!is_open(&mine, &sent, now + LIFETIME));
        assert!(!is_open(&token("another 0123456789".replace(' ', "-").as_str()), &sent, now));
    }

    #[test]
    fn a_cookie_that_was_changed_is_worth_nothing() {
        let (mine, now) = (token("0123456789abcdef"), SystemTime::now());
        let header = begin(&mine, now);
        let value = header.split(['=', ';']).nth(1).unwrap().to_owned();
        let (until, proof) = value.split_once('.').unwrap();
        let later = until.parse::<u64>().unwrap() + 1;
        for forged in [
            format!("{later}.{proof}"),
            format!("{until}."),
            until.to_owned(),
            format!("{until}.{}", "0".repeat(64)),
            String::new(),
            format!("{until}.ü{proof}"),
        ] {
            assert!(!is_open(&mine, &format!("{NAME}={forged}"), now), "{forged}");
        }
    }
}
