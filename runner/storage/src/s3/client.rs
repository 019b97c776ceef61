//! The SDK's client, configured so that this crate handles retries, body timeouts and checksums.

use std::time::Duration;

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::region::RegionProviderChain;
#[expect(deprecated, reason = "the new names are in a crate that nothing else here needs")]
use aws_config::profile::profile_file::{ProfileFileKind, ProfileFiles};
use aws_config::profile::{ProfileFileCredentialsProvider, ProfileFileRegionProvider};
use aws_config::provider_config::ProviderConfig;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Builder, Config, Credentials, Region, ResponseChecksumValidation, SharedHttpClient,
    StalledStreamProtectionConfig,
};
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};

use crate::s3::connection::WatchedClient;
use crate::s3::settings::{S3Credentials, S3Settings};

/// Region for a server with a configured endpoint but no configured region.
const USUAL_REGION: &str = "us-east-1";

/// Idle time after which a connection is closed. Servers keep idle connections longer, Amazon about 20 seconds.
const REST: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
#[error("no region is known; set it in the store's settings or in AWS_REGION")]
pub(crate) struct NoRegion;

/// Creates a client for the bucket of `settings`. Looks up the region; credentials are looked up when a request needs them.
pub(crate) async fn connect(settings: &S3Settings) -> Result<Client, NoRegion> {
    let http = http_client(settings);
    let provider = ProviderConfig::default()
        .with_behavior_version(Some(BehaviorVersion::latest()))
        .with_http_client(http.clone());
    let region = region(settings, &provider).await.ok_or(NoRegion)?;
    let timeouts = TimeoutConfig::builder().connect_timeout(settings.timeouts.connect).build();
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(WatchedClient(http))
        .region(region.clone())
        .timeout_config(timeouts)
        // The SDK's retries are disabled, because this crate repeats the request together with the reading of its response.
        .retry_config(RetryConfig::disabled())
        // Disabled, because this crate has a separate timeout for bodies.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        // Checksums are requested only for reads of whole objects, because some servers send the whole object's checksum with a
        // part of the object.
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .force_path_style(settings.path_style.unwrap_or(settings.endpoint.is_some()));
    let config = match &settings.endpoint {
        Some(endpoint) => config.endpoint_url(endpoint),
        None => config,
    };
    Ok(Client::from_conf(
        with_credentials(config, settings, provider.with_region(Some(region))).await.build(),
    ))
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

async fn with_credentials(config: Builder, settings: &S3Settings, provider: ProviderConfig) -> Builder {
    match &settings.credentials {
        S3Credentials::Anonymous => config.allow_no_auth(),
        S3Credentials::Static { access_key_id, secret_access_key, session_token } => {
            let token = session_token.as_ref().map(|token| token.expose().to_owned());
            let (id, secret) = (access_key_id.clone(), secret_access_key.expose().to_owned());
            config.credentials_provider(Credentials::new(id, secret, token, None, "settings"))
        }
        S3Credentials::File(path) => {
            #[expect(deprecated, reason = "see where it is imported")]
            let files = ProfileFiles::builder().with_file(ProfileFileKind::Credentials, path).build();
            let file = ProfileFileCredentialsProvider::builder().configure(&provider).profile_files(files);
            config.credentials_provider(file.build())
        }
        S3Credentials::Chain => {
            config.credentials_provider(DefaultCredentialsChain::builder().configure(provider).build().await)
        }
    }
}
