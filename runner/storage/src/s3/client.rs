//! The SDK's client, configured so that this crate handles retries, body timeouts and checksums.

use std::sync::Arc;
use std::time::Duration;

use aws_config::default_provider::checksums::{
    request_checksum_calculation_provider, response_checksum_validation_provider,
};
use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::provider_config::ProviderConfig;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Builder, Config, Credentials, IdentityCache, Region, RequestChecksumCalculation,
    ResponseChecksumValidation, SharedHttpClient, StalledStreamProtectionConfig,
};
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};

use crate::s3::connection::CheckedClient;
use crate::s3::credentials::{Origin, RenewedCredentials, Search, SharedCredentials};
use crate::s3::settings::{S3Credentials, S3Settings};

/// Region for a server with a configured endpoint but no configured region.
const USUAL_REGION: &str = "us-east-1";

/// Idle time after which a connection is closed. Servers keep idle connections longer, Amazon about 20 seconds.
const REST: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
#[error("no region is known; set it in the store's settings or in AWS_REGION")]
pub(crate) struct NoRegion;

/// A client for the bucket in one region.
pub(crate) struct Connected {
    pub(crate) client: Client,
    pub(crate) region: String,
    /// Credentials of the requests, if they can be renewed.
    pub(crate) renewable: Option<(Arc<SharedCredentials>, Search)>,
    /// Set if reads of whole objects ask for their checksums.
    pub(crate) validates: bool,
}

impl Connected {
    /// Number of different credentials that were found so far.
    pub(crate) fn generation(&self) -> u64 {
        self.renewable.as_ref().map_or(0, |(shared, _)| shared.generation())
    }

    /// Creates a client for the same bucket in another region. Only the region changes: the host is that of the settings, or the one
    /// which the SDK derives from the region.
    pub(crate) fn in_region(&self, region: &str) -> Self {
        let config = self.client.config().to_builder().region(Region::new(region.to_owned()));
        Self {
            client: Client::from_conf(config.build()),
            region: region.to_owned(),
            renewable: self.renewable.clone(),
            validates: self.validates,
        }
    }
}

/// Creates a client for the bucket of `settings`. Looks up the region; credentials are looked up when a request needs them.
pub(crate) async fn connect(settings: &S3Settings) -> Result<Connected, NoRegion> {
    let client = http_client(settings);
    let http = SharedHttpClient::new(CheckedClient { client: client.clone(), is_watched: false });
    let provider = ProviderConfig::default()
        .with_behavior_version(Some(BehaviorVersion::latest()))
        .with_http_client(http.clone());
    let region = region(settings, &provider).await.ok_or(NoRegion)?;
    let requests = request_checksum_calculation_provider(&provider).await;
    let responses = response_checksum_validation_provider(&provider).await;
    let timeouts = TimeoutConfig::builder().connect_timeout(settings.timeouts.connect).build();
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(CheckedClient { client, is_watched: true })
        .region(region.clone())
        .timeout_config(timeouts)
        // The SDK's retries are disabled, because this crate repeats the request together with the reading of its response.
        .retry_config(RetryConfig::disabled())
        // Disabled, because this crate has a separate timeout for bodies.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        // Checksums are requested only for reads of whole objects, because some servers send the whole object's checksum with a
        // part of the object.
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .request_checksum_calculation(requests.unwrap_or(RequestChecksumCalculation::WhenSupported))
        .force_path_style(settings.path_style.unwrap_or(settings.endpoint.is_some()));
    let config = match &settings.endpoint {
        Some(endpoint) => config.endpoint_url(endpoint),
        None => config,
    };
    let renewable = renewable(settings, http, region.clone());
    let config = with_credentials(config, settings, renewable.clone());
    Ok(Connected {
        client: Client::from_conf(config.build()),
        region: region.as_ref().to_owned(),
        renewable,
        validates: responses != Some(ResponseChecksumValidation::WhenRequired),
    })
}

/// HTTP client with one connection per concurrent request; idle connections are reused. The SDK's client sets `TCP_NODELAY`.
fn http_client(settings: &S3Settings) -> SharedHttpClient {
    // The system's certificates are loaded only if TLS is needed, because reading them takes milliseconds.
    let needs_tls = settings.endpoint.as_ref().is_none_or(|endpoint| endpoint.starts_with("https"))
        || !matches!(settings.credentials, S3Credentials::Static { .. } | S3Credentials::Anonymous);
    let trusted = TrustStore::empty().with_native_roots(needs_tls);
    let builder = aws_smithy_http_client::Builder::new()
        .pool_idle_timeout(REST)
        .tls_provider(Provider::Rustls(CryptoMode::Ring));
    match TlsContext::builder().with_trust_store(trusted).build() {
        Ok(context) => builder.tls_context(context).build_https(),
        // Cannot fail with default settings; this fallback is equivalent and uses the system's certificates.
        Err(_) => builder.build_https(),
    }
}

async fn region(settings: &S3Settings, provider: &ProviderConfig) -> Option<Region> {
    if let Some(region) = &settings.region {
        return Some(Region::new(region.clone()));
    }
    let written = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
        .or_else(ProfileFileRegionProvider::builder().configure(provider).build());
    let chain = match settings.endpoint {
        None => written.or_else(ImdsRegionProvider::builder().configure(provider).build()),
        // With an endpoint, the metadata service of Amazon's machines is not queried.
        Some(_) => written.or_else(Region::from_static(USUAL_REGION)),
    };
    chain.region().await
}

/// Credentials that may change while the store is in use.
fn renewable(
    settings: &S3Settings,
    http: SharedHttpClient,
    region: Region,
) -> Option<(Arc<SharedCredentials>, Search)> {
    let origin = match &settings.credentials {
        S3Credentials::Anonymous | S3Credentials::Static { .. } => return None,
        S3Credentials::File(path) => Origin::File(path.clone()),
        S3Credentials::Chain => Origin::Chain,
    };
    Some((SharedCredentials::of(origin, &region), Search { http, region }))
}

fn with_credentials(
    config: Builder,
    settings: &S3Settings,
    renewable: Option<(Arc<SharedCredentials>, Search)>,
) -> Builder {
    match (&settings.credentials, renewable) {
        (S3Credentials::Static { access_key_id, secret_access_key, session_token }, _) => {
            let token = session_token.as_ref().map(|token| token.expose().to_owned());
            let (id, secret) = (access_key_id.clone(), secret_access_key.expose().to_owned());
            config.credentials_provider(Credentials::new(id, secret, token, None, "settings"))
        }
        // The SDK keeps none of them: its cache could not be told of a renewal.
        (_, Some((shared, search))) => config
            .credentials_provider(RenewedCredentials { shared, search })
            .identity_cache(IdentityCache::no_cache()),
        (_, None) => config.allow_no_auth(),
    }
}
