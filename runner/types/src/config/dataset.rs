use serde::Deserialize;

use super::text::{BucketName, Endpoint, IndexUrl, KeyPrefix, Region, SecretText};
use crate::fault::{Pointer, SpecFault};
use crate::spec::{parse, read_all};

/// A data set in S3 as a file that is shared between projects describes it, with its credentials or without. What
/// reads it treats the file as secret: no fault repeats a value of it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetConfig {
    /// Id of the key that signs requests; looked up in the standard places when missing, together with the secret.
    #[serde(default)]
    pub aws_access_key_id: Option<SecretText>,
    /// The key itself.
    #[serde(default)]
    pub aws_secret_access_key: Option<SecretText>,
    /// What comes with a key that is valid for some hours.
    #[serde(default)]
    pub aws_session_token: Option<SecretText>,
    /// The bucket.
    pub bucket_name: BucketName,
    /// The part of the bucket that is the store.
    #[serde(default)]
    pub prefix: KeyPrefix,
    /// Where the index lies, in this bucket or another one that the same credentials open.
    #[serde(default)]
    pub index_file_download_url: Option<IndexUrl>,
    /// The service.
    #[serde(default)]
    pub endpoint_url: Option<Endpoint>,
    /// The region.
    #[serde(default)]
    pub region_name: Option<Region>,
}

impl DatasetConfig {
    /// Reads a configuration. Fails with everything that is wrong with it.
    pub fn read(bytes: &[u8]) -> Result<Self, Vec<SpecFault>> {
        read_all(parse(bytes)?, Vec::new(), Self::check)
    }

    fn check(&self) -> Vec<SpecFault> {
        let missing = |field: &str, other: &str| {
            vec![SpecFault::new(Pointer::ROOT.key(field), format!("it is missing, and goes with `{other}`"))]
        };
        match (&self.aws_access_key_id, &self.aws_secret_access_key, &self.aws_session_token) {
            (Some(_), None, _) => missing("aws_secret_access_key", "aws_access_key_id"),
            (None, Some(_), _) => missing("aws_access_key_id", "aws_secret_access_key"),
            (None, None, Some(_)) => missing("aws_access_key_id", "aws_session_token"),
            (Some(_), Some(_), _) | (None, None, None) => Vec::new(),
        }
    }
}
