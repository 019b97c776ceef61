//! Modes: properties of real buckets and services that a client has to cope with, for all requests.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::http::request::Parts;
use s3s::dto::{Timestamp, TimestampFormat};

/// Maximum difference between the times of a request and of the service.
const MOST_SKEW: Duration = Duration::from_secs(15 * 60);

/// A property that makes a bucket or its service differ from a plain one.
#[derive(Clone, Debug, PartialEq)]
pub enum Mode {
    /// The bucket is in this region: a request that is signed for another one gets this status, and the region in a header; with 400,
    /// in the body, too.
    Region(String, u16),
    /// Temporary credentials: a session token is valid for a number of requests; later ones with it are answered `400 ExpiredToken`.
    Token {
        /// Number of requests for which a token is valid.
        requests: u64,
        /// Credentials file that the server writes at its start and when it replaces the token.
        file: PathBuf,
    },
    /// Requests without `x-amz-request-payer: requester` are answered `403 AccessDenied`.
    Payer,
    /// Listings are in another order than that of S3.
    Listing(Order),
    /// Requests with headers for checksums are answered `501 NotImplemented`.
    NoChecksums,
    /// The service's clock is ahead of the machine's by this number of seconds: requests that differ by more than 15 minutes are answered
    /// `403 RequestTimeTooSkewed`.
    Clock(i64),
    /// No response has this header, such as `etag`.
    Without(String),
}

/// Order of the keys in listings. `start-after` is supported by those that sort keys, whatever their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By their bytes, as S3 does.
    #[default]
    Sorted,
    /// Backwards.
    Reversed,
    /// By a hash of the key.
    Shuffled,
    /// Sorted within each page, with the last page first.
    PagesReversed,
    /// Sorted, but each page begins with the last key of the page before it.
    Repeated,
    /// Sorted, but after the last page the first one follows.
    Endless,
    /// Without case.
    CaseIgnored,
    /// By the units of their UTF-16.
    Utf16,
}

impl Order {
    /// Text by whose bytes a key is sorted; `None` if the order is not one of keys.
    pub(crate) fn collation(self, key: &str) -> Option<Vec<u8>> {
        match self {
            Self::CaseIgnored => Some(format!("{}\0{key}", key.to_lowercase()).into_bytes()),
            Self::Utf16 => Some(key.encode_utf16().flat_map(u16::to_be_bytes).collect()),
            _ => None,
        }
    }
}

/// Region that a request is signed for.
pub fn signed_region(authorization: &str) -> Option<&str> {
    authorization.split_once("Credential=")?.1.split('/').nth(2)
}

/// Tokens of temporary credentials.
pub(crate) struct Tokens {
    requests: u64,
    file: PathBuf,
    access_key: (String, String),
    asked: u64,
}

impl Tokens {
    pub(crate) fn start(requests: u64, file: &Path, access_key: (&str, &str)) -> io::Result<Self> {
        let access_key = (access_key.0.to_owned(), access_key.1.to_owned());
        let tokens = Self { requests: requests.max(1), file: file.to_owned(), access_key, asked: 0 };
        tokens.write().map(|()| tokens)
    }

    fn token(&self) -> String {
        format!("token-{}", self.asked / self.requests)
    }

    /// Replaces the file, in one step, as the programs that issue credentials do.
    fn write(&self) -> io::Result<()> {
        let (id, secret) = &self.access_key;
        let draft = self.file.with_extension("draft");
        let text = format!(
            "[default]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\naws_session_token = {}\n",
            self.token()
        );
        fs::write(&draft, text)?;
        fs::rename(&draft, &self.file)
    }

    /// True if the token of a request is valid. Counts the request if it is.
    pub(crate) fn accepts(&mut self, token: Option<&str>) -> io::Result<bool> {
        if token != Some(&*self.token()) {
            return Ok(false);
        }
        self.asked += 1;
        if self.asked.is_multiple_of(self.requests) {
            self.write()?;
        }
        Ok(true)
    }
}

/// Error response: status, code, and headers.
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) code: &'static str,
    pub(crate) headers: Vec<(&'static str, String)>,
    /// Further elements of the body.
    pub(crate) more: String,
}

impl Mode {
    /// Refusal of a request for what its headers say.
    pub(crate) fn refusal(&self, request: &Parts) -> Option<Refusal> {
        let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
        let refused = |status, code| Some(Refusal { status, code, headers: Vec::new(), more: String::new() });
        match self {
            Self::Region(region, status) => {
                let signed = header("authorization").and_then(signed_region);
                if signed.is_none_or(|signed| signed == region) {
                    return None;
                }
                let code = match status {
                    301 => "PermanentRedirect",
                    307 => "TemporaryRedirect",
                    _ => "AuthorizationHeaderMalformed",
                };
                // No client may follow an address.
                let headers = vec![
                    ("x-amz-bucket-region", region.clone()),
                    ("location", "http://127.0.0.1:1/elsewhere".to_owned()),
                ];
                let more = format!("<Region>{region}</Region><Endpoint>127.0.0.1:1</Endpoint>");
                Some(Refusal { status: *status, code, headers, more })
            }
            Self::Payer if header("x-amz-request-payer") != Some("requester") => refused(403, "AccessDenied"),
            Self::NoChecksums
                if request.headers.keys().any(|name| {
                    name.as_str().starts_with("x-amz-checksum-") || name == "x-amz-sdk-checksum-algorithm"
                }) =>
            {
                refused(501, "NotImplemented")
            }
            Self::Clock(ahead) => {
                let signed = header("x-amz-date").and_then(parse_amz_date)?;
                match signed.abs_diff(service_time(*ahead)) > MOST_SKEW.as_secs() {
                    true => refused(403, "RequestTimeTooSkewed"),
                    false => None,
                }
            }
            Self::Payer | Self::NoChecksums | Self::Token { .. } | Self::Listing(_) | Self::Without(_) => {
                None
            }
        }
    }
}

/// Value of the `Date` header by a clock that is `ahead` of the machine's.
pub(crate) fn date(ahead: i64) -> Option<String> {
    let time = Timestamp::from(UNIX_EPOCH + Duration::from_secs(service_time(ahead)));
    let mut text = Vec::new();
    time.format(TimestampFormat::HttpDate, &mut text).ok()?;
    String::from_utf8(text).ok()
}

/// Seconds since 1970 by a clock that is `ahead` of the machine's.
fn service_time(ahead: i64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    now.saturating_add_signed(ahead)
}

/// Parses `20260131T235959Z` as seconds since 1970.
fn parse_amz_date(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
    let (hour, minute, second) = (number(9, 11)?, number(11, 13)?, number(13, 15)?);
    // Days since 1970 in the calendar that begins its years in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    u64::try_from(((days * 24 + hour) * 60 + minute) * 60 + second).ok()
}

impl FromStr for Mode {
    type Err = String;

    /// Parses `region=REGION[:STATUS]`, `token=REQUESTS:FILE`, `payer`, `listing=ORDER`, `no-checksums`, `clock=SECONDS` or `without=HEADER`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let (first, second) = value.split_once(':').unwrap_or((value, ""));
        let mode = match name {
            "region" if second.is_empty() => Some(Self::Region(first.to_owned(), 301)),
            "region" => second.parse().ok().map(|status| Self::Region(first.to_owned(), status)),
            "token" => first.parse().ok().map(|requests| Self::Token { requests, file: second.into() }),
            "payer" => Some(Self::Payer),
            "listing" => match value {
                "reversed" => Some(Order::Reversed),
                "shuffled" => Some(Order::Shuffled),
                "pages-reversed" => Some(Order::PagesReversed),
                "repeated" => Some(Order::Repeated),
                "endless" => Some(Order::Endless),
                "case-ignored" => Some(Order::CaseIgnored),
                "utf-16" => Some(Order::Utf16),
                _ => None,
            }
            .map(Self::Listing),
            "no-checksums" => Some(Self::NoChecksums),
            "clock" => value.parse().ok().map(Self::Clock),
            "without" => Some(Self::Without(value.to_ascii_lowercase())),
            _ => None,
        };
        mode.ok_or_else(|| {
            "expected `region=REGION[:STATUS]`, `token=REQUESTS:FILE`, `payer`, `no-checksums`, `clock=SECONDS`, `without=HEADER`, or \
             `listing=` with `reversed`, `shuffled`, `pages-reversed`, `repeated`, `endless`, `case-ignored` or `utf-16`"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_signatures_are_seconds() {
        assert_eq!(parse_amz_date("19700101T000000Z"), Some(0));
        assert_eq!(parse_amz_date("20000301T000001Z"), Some(951_868_801));
        assert_eq!(parse_amz_date("20261128T184500Z"), Some(1_795_891_500));
    }
}
