use serde::Deserialize;

use super::text::{BucketName, Endpoint, IndexUrl, KeyPrefix, Region, SecretText};
use crate::fault::{Pointer, SpecFault};
use crate::spec::{parse, read_all};

/// Description of a data set in S3, in a file shared between projects, with or without credentials. Its readers treat the file as
/// secret: no fault repeats one of its values.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetConfig {
    /// Id of the access key that signs requests; when missing, the id and its secret are taken from the environment, the profile
    /// or the machine's role.
    pub aws_access_key_id: Option<SecretText>,
    /// Secret access key that belongs to `aws_access_key_id`.
    pub aws_secret_access_key: Option<SecretText>,
    /// Session token of a temporary access key.
    pub aws_session_token: Option<SecretText>,
    /// Name of the bucket.
    pub bucket_name: BucketName,
    /// Prefix of all keys of the store; the whole bucket when empty.
    #[serde(default)]
    pub prefix: KeyPrefix,
    /// Location of the index, in this bucket or in another one that the same credentials can read.
    pub index_file_download_url: Option<IndexUrl>,
    /// Address of the S3 service.
    pub endpoint_url: Option<Endpoint>,
    /// Region of the bucket.
    pub region_name: Option<Region>,
}

impl DatasetConfig {
    /// Reads a description. On failure, returns all faults.
    pub fn read(bytes: &[u8]) -> Result<Self, Vec<SpecFault>> {
        read_all(parse(bytes)?, Vec::new(), Self::check)
    }

    fn check(&self) -> Vec<SpecFault> {
        let missing = |field: &str, other: &str| {
            vec![SpecFault::new(
                Pointer::ROOT.key(field),
                format!("the field is missing; `{other}` requires it"),
            )]
        };
        match (&self.aws_access_key_id, &self.aws_secret_access_key, &self.aws_session_token) {
            (Some(_), None, _) => missing("aws_secret_access_key", "aws_access_key_id"),
            (None, Some(_), _) => missing("aws_access_key_id", "aws_secret_access_key"),
            (None, None, Some(_)) => missing("aws_access_key_id", "aws_session_token"),
            (Some(_), Some(_), _) | (None, None, None) => Vec::new(),
        }
    }
}
