//! The requests of an S3 bucket.

use std::sync::Arc;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::{Region, RequestChecksumCalculation};
use aws_sdk_s3::primitives::{ByteStream, DateTime};
use aws_sdk_s3::types::{ChecksumMode, EncodingType, Object, RequestPayer};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::future::FutureExt;
use tracing::warn;

use crate::remote::failure::{Failure, innermost};
use crate::remote::service::{Head, Listed, Page, PageRequest, Part, Renewal, Response, Service};
use crate::s3::credentials::{Absent, RenewedCredentials};
use crate::s3::settings::{REQUEST_CHECKSUMS, RESPONSE_CHECKSUMS, S3Credentials, S3Settings};
use crate::store::{IfThere, Version};

/// A bucket, by a client for one region.
#[derive(Clone)]
pub(crate) struct Bucket {
    pub(crate) store: Arc<str>,
    pub(crate) settings: Arc<S3Settings>,
    pub(crate) client: Client,
    pub(crate) region: String,
    /// Credentials of the requests, if they can be renewed.
    pub(crate) renewable: Option<RenewedCredentials>,
    /// Set if reads of whole objects ask for their checksums.
    pub(crate) validates: bool,
}

impl Bucket {
    /// Parameter of requests that agree to pay.
    fn payer(&self) -> Option<RequestPayer> {
        self.settings.requester_pays.then_some(RequestPayer::Requester)
    }
}

/// The futures of the SDK are boxed, because they are too large for the futures of the layers around them.
impl Service for Bucket {
    type Body = ByteStream;
    type Absent = Absent;

    const UNSORTED: &str = "the service does not list keys in byte order, as S3 does, which showed after some of them were used: set \
                            `\"sorted\": false` of the store";

    async fn page(&self, wanted: &PageRequest<'_>) -> Result<Page, Failure> {
        let request = self.client.list_objects_v2().bucket(&self.settings.bucket).prefix(wanted.prefix);
        // Keys are requested URL-encoded, because a key may contain characters that are not valid in XML.
        let request = request.encoding_type(EncodingType::Url).set_request_payer(self.payer());
        let request = request.set_continuation_token(wanted.token.map(str::to_owned));
        let request = request.set_start_after(wanted.after.map(str::to_owned));
        let request = request.set_delimiter(wanted.is_of_folders.then(|| "/".to_owned()));
        let answer = request.send().boxed().await.map_err(|error| Failure::of_request(&error))?;
        let (objects, folders) =
            (answer.contents.unwrap_or_default(), answer.common_prefixes.unwrap_or_default());
        let arrived = objects.len() + folders.len();
        // Some services count nothing, and some the keys without the folders. No page has less than its count.
        if let Some(count) = answer.key_count
            && usize::try_from(count).is_ok_and(|count| count > arrived)
        {
            return Err(Failure::passing(format!(
                "the listing is incomplete: it announces {count} keys and folders, but has {arrived}"
            )));
        }
        let is_encoded = answer.encoding_type == Some(EncodingType::Url);
        let listed = |name: Option<String>, is_empty, version| {
            let name = name.unwrap_or_default();
            let text = if is_encoded { decoded(&name) } else { None };
            Listed { is_utf8: text.is_some() || !is_encoded, name: text.unwrap_or(name), is_empty, version }
        };
        let object = |it: Object| {
            let size = it.size.and_then(|size| u64::try_from(size).ok());
            let version = size.zip(it.e_tag).map(|(size, tag)| Version { size, tag: Some(tag.into()) });
            listed(it.key, it.size.unwrap_or(0) == 0, version)
        };
        // A service that says neither gives a token only if there is more.
        let has_token = || answer.next_continuation_token.as_ref().is_some_and(|next| !next.is_empty());
        Ok(Page {
            is_truncated: answer.is_truncated.unwrap_or_else(has_token),
            objects: objects.into_iter().map(object).collect(),
            folders: folders.into_iter().map(|it| listed(it.prefix, true, None)).collect(),
            next: answer.next_continuation_token,
        })
    }

    async fn read(&self, key: &str, part: Option<&Part<'_>>) -> Result<Response<ByteStream>, Failure> {
        let request = self.client.get_object().bucket(&self.settings.bucket).key(key);
        let request = request.set_request_payer(self.payer());
        let validates = self.validates && part.is_none();
        let request = match part {
            Some(Part { range, tag }) => {
                let (first, last) = (range.start, range.end - 1);
                request.set_if_match(tag.map(str::to_owned)).range(format!("bytes={first}-{last}"))
            }
            None => request.set_checksum_mode(validates.then_some(ChecksumMode::Enabled)),
        };
        let answer = request.send().boxed().await.map_err(|error| {
            let failure = Failure::of_request(&error);
            if validates { failure.naming(RESPONSE_CHECKSUMS) } else { failure }
        })?;
        Ok(Response {
            head: head(answer.e_tag, answer.last_modified, answer.content_length),
            content_range: answer.content_range,
            crc32: answer.checksum_crc32.as_deref().and_then(parse_crc32),
            body: answer.body,
        })
    }

    async fn next_bytes(body: &mut ByteStream) -> Option<Result<Bytes, Failure>> {
        let early = |error| Failure::passing(format!("the response ended early: {}", innermost(&error)));
        Some(body.next().await?.map_err(early))
    }

    async fn version(&self, key: &str) -> Result<Head, Failure> {
        let request = self.client.head_object().bucket(&self.settings.bucket).key(key);
        let answer = request.set_request_payer(self.payer()).send().boxed().await;
        let answer = answer.map_err(|error| Failure::of_request(&error))?;
        Ok(head(answer.e_tag, answer.last_modified, answer.content_length))
    }

    /// S3 makes the object visible only once it is complete.
    async fn write(&self, key: &str, bytes: Bytes, if_there: IfThere) -> Result<(), Failure> {
        let request = self.client.put_object().bucket(&self.settings.bucket).key(key);
        let request = request.body(ByteStream::from(bytes)).set_request_payer(self.payer());
        let request = if if_there == IfThere::Leave { request.if_none_match("*") } else { request };
        let adds_checksums = self.client.config().request_checksum_calculation()
            == Some(&RequestChecksumCalculation::WhenSupported);
        match request.send().boxed().await {
            Ok(_) => Ok(()),
            // The service need not know the checksums.
            Err(error) if adds_checksums => Err(Failure::of_request(&error).naming(REQUEST_CHECKSUMS)),
            Err(error) => Err(Failure::of_request(&error)),
        }
    }

    fn place(&self) -> &str {
        &self.region
    }

    /// Only the region changes: the host is that of the settings, or the one which the SDK derives from the region.
    fn at(&self, region: &str) -> Self {
        warn!(
            store = &*self.store,
            region, "the bucket is in another region, which is used from now on; set `region` of the store"
        );
        let config = self.client.config().to_builder().region(Region::new(region.to_owned()));
        Self { client: Client::from_conf(config.build()), region: region.to_owned(), ..self.clone() }
    }

    fn elsewhere(region: &str, is_tried: bool) -> String {
        match is_tried {
            true => format!(
                "the bucket is in the region `{region}`, which was tried: set `region` of the store, and, if it has one, its `endpoint` \
                 to that of the region"
            ),
            false => format!("the bucket is in the region `{region}`: set `region` of the store"),
        }
    }

    fn generation(&self) -> u64 {
        self.renewable.as_ref().map_or(0, |renewable| renewable.shared.generation())
    }

    async fn renew(&self, generation: u64) -> Option<Renewal<Absent>> {
        let RenewedCredentials { shared, search } = self.renewable.as_ref()?;
        Some(shared.renew(generation, search).await)
    }

    fn permission_note(&self) -> Option<&'static str> {
        let S3Settings { requester_pays, credentials, .. } = &*self.settings;
        let may_lack_payer = !requester_pays && !matches!(credentials, S3Credentials::Anonymous);
        may_lack_payer
            .then_some("a bucket whose requesters pay needs `\"requester_pays\": true` of the store")
    }
}

fn head(tag: Option<String>, modified: Option<DateTime>, length: Option<i64>) -> Head {
    Head { tag, modified: modified.map(|time| (time.secs(), time.subsec_nanos())), length }
}

/// Parses the CRC-32 of a whole object. Returns `None` for the checksum of an object uploaded in parts (`AAAAAA==-3`), which is a
/// checksum of checksums.
fn parse_crc32(text: &str) -> Option<u32> {
    Some(u32::from_be_bytes(STANDARD.decode(text).ok()?.try_into().ok()?))
}

/// Decodes a form-encoded key: `+` is a space, `%` and two hex digits a byte.
fn decoded(key: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next()?, rest.next()?].map(char::from).map(|digit| digit.to_digit(16));
                u8::try_from(digits[0]? * 16 + digits[1]?).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_decoded_like_form_data() {
        assert_eq!(decoded("a/b+c%2Bd%e4%bd%a0").as_deref(), Some("a/b c+d\u{4f60}"));
        for bad in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decoded(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn only_the_checksum_of_a_whole_object_is_used() {
        assert_eq!(parse_crc32("AAAB/w=="), Some(0x1ff));
        for other in ["AAAB/w==-2", "", "AAA=", "AAAAAAAA"] {
            assert_eq!(parse_crc32(other), None, "{other}");
        }
    }
}
