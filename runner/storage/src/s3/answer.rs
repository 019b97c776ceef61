//! Checks responses before the SDK reads them: it takes a listing that ends early for a whole one, any success for that of an object, and
//! bodies of any length into memory.

use aws_sdk_s3::config::http::{HttpRequest, HttpResponse};
use aws_sdk_s3::error::ConnectorError;
use aws_sdk_s3::primitives::{ByteStream, SdkBody};
use memchr::memmem;
use penstock_types::text::printable;

use crate::remote::failure::{MOST_MESSAGE, innermost};

/// Maximum size in bytes of a response that is no object. A page of 1000 keys of 1024 bytes has less than 4 MiB.
const MOST_BYTES: usize = 16 << 20;

/// Name of the element that holds a whole listing.
const ROOT: &[u8] = b"ListBucketResult";

/// Response that must not be used. Another attempt may get a better one.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UnfitAnswer(String);

/// Kind of a request, by the response that it expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requested {
    /// A whole object, or its metadata.
    Object,
    PartOfObject,
    Listing,
    Other,
}

impl Requested {
    pub(crate) fn of(request: &HttpRequest) -> Self {
        let query = request.uri().split_once('?').map_or("", |(_, query)| query);
        let has = |parameter| query.split('&').any(|other| other == parameter);
        if has("list-type=2") {
            Self::Listing
        } else if has("x-id=GetObject") && request.headers().contains_key("range") {
            Self::PartOfObject
        } else if has("x-id=GetObject") || request.method() == "HEAD" {
            Self::Object
        } else {
            Self::Other
        }
    }

    /// Returns the response if it may be used. Reads it to its end, unless it is an object.
    pub(crate) async fn checked(self, mut answer: HttpResponse) -> Result<HttpResponse, ConnectorError> {
        let status = answer.status();
        match self {
            // A part of an object, or the promise of one, has another status.
            Self::Object if status.is_success() && status.as_u16() != 200 => {
                let status = status.as_u16();
                let found = format!("a whole object was requested, but the response has the status {status}");
                return Err(UnfitAnswer(found).into());
            }
            Self::Object | Self::PartOfObject if status.is_success() => return Ok(answer),
            _ => {}
        }
        let body = read(answer.take_body()).await?;
        if self == Self::Listing && status.is_success() {
            check_listing(&body, status.as_u16())?;
        }
        *answer.body_mut() = SdkBody::from(body);
        Ok(answer)
    }
}

impl From<UnfitAnswer> for ConnectorError {
    fn from(answer: UnfitAnswer) -> Self {
        Self::other(Box::new(answer), None)
    }
}

async fn read(body: SdkBody) -> Result<Vec<u8>, UnfitAnswer> {
    let (mut stream, mut bytes) = (ByteStream::new(body), Vec::new());
    while let Some(piece) = stream.next().await {
        let early = |error| UnfitAnswer(format!("the response ended early: {}", innermost(&error)));
        let piece = piece.map_err(early)?;
        if bytes.len() + piece.len() > MOST_BYTES {
            return Err(UnfitAnswer(format!(
                "the response is no object, but has more than {MOST_BYTES} bytes"
            )));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// Checks that a body is one whole listing. The SDK's reader of XML takes the end of the text for the end of all elements, so that keys
/// behind a cut would be missing, and a key that is cut would have another name.
fn check_listing(body: &[u8], status: u16) -> Result<(), UnfitAnswer> {
    let (mut starts, mut ends, mut end) = (0, 0, 0);
    for at in memmem::find_iter(body, ROOT) {
        // The name may have a prefix.
        let before = match body[..at].strip_suffix(b":") {
            Some(before) => {
                let name = before.iter().rev().take_while(|byte| !b"</> \t\r\n".contains(byte)).count();
                &before[..before.len() - name]
            }
            None => &body[..at],
        };
        if before.ends_with(b"</") {
            (ends, end) = (ends + 1, at + ROOT.len());
        } else if before.ends_with(b"<") {
            starts += 1;
        }
    }
    Err(UnfitAnswer(match (starts, ends) {
        (1, 1) if body[end..].trim_ascii() == b">" => return Ok(()),
        (1, 0) => "the listing ended early: its last element has no end".to_owned(),
        (0, _) => match error_code(body) {
            Some(code) => format!("{code} (status {status})"),
            None => format!(
                "a listing was requested, but {} arrived (status {status}); is the address that of an S3 service?",
                found(body)
            ),
        },
        _ => "the response to one request has several listings, or text behind one".to_owned(),
    }))
}

/// Code of an error in place of a listing.
fn error_code(body: &[u8]) -> Option<String> {
    let text = str::from_utf8(body).ok()?;
    let code = text.split_once("<Error")?.1.split_once("<Code>")?.1.split_once("</Code>")?.0;
    Some(printable(code, MOST_MESSAGE))
}

/// Kind of a body that is no listing, in words.
fn found(body: &[u8]) -> &'static str {
    let text = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body).trim_ascii_start();
    let begins =
        |start: &[u8]| text.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
    if text.is_empty() {
        "nothing"
    } else if begins(b"<!doctype html") || begins(b"<html") {
        "a page of HTML"
    } else if begins(b"<") {
        "other XML"
    } else {
        "something else"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_whole_listing_is_accepted() {
        let check = |body: &str| check_listing(body.as_bytes(), 200).map_err(|UnfitAnswer(text)| text);
        let whole = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"a\"><Contents><Key>bcdef</Key></Contents></ListBucketResult>";
        for good in [
            whole.to_owned(),
            format!("\u{feff}{whole} \r\n"),
            whole.replace("</ListBucketResult>", "</ListBucketResult\n>"),
            whole.replace("ListBucketResult", "ns2:ListBucketResult"),
            whole.replace("bcdef", "ListBucketResult/a:ListBucketResult"),
        ] {
            assert_eq!(check(&good), Ok(()), "{good}");
        }
        // No cut at any place is taken for the whole.
        for end in 0..whole.len() {
            assert!(check(&whole[..end]).is_err(), "{}", &whole[..end]);
        }
        let early = "the listing ended early: its last element has no end";
        assert_eq!(check(whole.split_once("def").unwrap().0).unwrap_err(), early);
        for several in [whole.repeat(2), format!("{whole}x"), format!("{whole}<a/>")] {
            let told = check(&several).unwrap_err();
            assert_eq!(told, "the response to one request has several listings, or text behind one");
        }
    }

    #[test]
    fn what_arrives_in_place_of_a_listing_is_named() {
        for (body, expected) in [
            ("", "nothing"),
            (" \n", "nothing"),
            ("<!DOCTYPE html><html>ListBucketResult</html>", "a page of HTML"),
            ("\n<HTML>", "a page of HTML"),
            ("<?xml version=\"1.0\"?><a/>", "other XML"),
            ("{}", "something else"),
        ] {
            let expected = format!(
                "a listing was requested, but {expected} arrived (status 200); is the address that of an S3 service?"
            );
            assert_eq!(check_listing(body.as_bytes(), 200).unwrap_err().to_string(), expected, "{body}");
        }
        let error = b"<Error><Code>SlowDown</Code></Error>";
        assert_eq!(check_listing(error, 200).unwrap_err().to_string(), "SlowDown (status 200)");
    }
}
