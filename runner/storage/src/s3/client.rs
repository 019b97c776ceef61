//! The SDK's client, configured so that this crate handles retries, body timeouts and checksums.

use std::sync::Arc;
use std::time::Duration;

use aws_config::default_provider::checksums::{
    request_checksum_calculation_provider, response_checksum_validation_provider,
};
use aws_config::default_provider::endpoint_url::endpoint_url_provider;
use aws_config::default_provider::ignore_configured_endpoint_urls::ignore_configured_endpoint_urls_provider;
use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::region::ProvideRegion;
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
use tokio::time::timeout;

use crate::remote::failure::Cause;
use crate::remote::options::check_endpoint;
use crate::s3::bucket::Bucket;
use crate::s3::connection::Checked;
use crate::s3::credentials::{Origin, RenewedCredentials, Search, SharedCredentials};
use crate::s3::settings::{S3Credentials, S3Settings};

/// Region for a server with a configured endpoint but no configured region.
const USUAL_REGION: &str = "us-east-1";

/// Idle time after which a connection is closed. Servers keep idle connections longer, Amazon about 20 seconds.
const REST: Duration = Duration::from_secs(15);

/// Connects to the bucket of `settings`. Looks up the endpoint and the region; credentials are looked up when a request needs them.
pub(crate) async fn connect(store: Arc<str>, settings: Arc<S3Settings>) -> Result<Bucket, Cause> {
    let most = settings.timeouts.attempt;
    let late =
        |_| Err(Cause::new(format!("no region was found within {most:?}; set it in the store's settings")));
    timeout(most, bucket(store, settings)).await.unwrap_or_else(late)
}

async fn bucket(store: Arc<str>, settings: Arc<S3Settings>) -> Result<Bucket, Cause> {
    let provider = ProviderConfig::default().with_behavior_version(Some(BehaviorVersion::latest()));
    let endpoint = endpoint(&settings, &provider).await?;
    let client = http_client(&settings, endpoint.as_deref());
    let http = SharedHttpClient::new(Checked { inner: client.clone(), is_watched: false });
    let provider = provider.with_http_client(http.clone());
    let region = region(&settings, endpoint.is_some(), &provider).await?;
    let requests = request_checksum_calculation_provider(&provider).await;
    let responses = response_checksum_validation_provider(&provider).await;
    let timeouts = TimeoutConfig::builder().connect_timeout(settings.timeouts.connect).build();
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(Checked { inner: client, is_watched: true })
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
        .force_path_style(settings.path_style.unwrap_or(endpoint.is_some()));
    let config = match endpoint {
        Some(endpoint) => config.endpoint_url(endpoint),
        None => config,
    };
    let renewable = renewable(&settings, http, region.clone());
    let config = with_credentials(config, &settings, renewable.clone());
    Ok(Bucket {
        store,
        settings,
        client: Client::from_conf(config.build()),
        region: region.as_ref().to_owned(),
        renewable,
        validates: responses != Some(ResponseChecksumValidation::WhenRequired),
    })
}

/// HTTP client with one connection per concurrent request; idle connections are reused. The SDK's client sets `TCP_NODELAY`.
fn http_client(settings: &S3Settings, endpoint: Option<&str>) -> SharedHttpClient {
    // The system's certificates are loaded only if TLS is needed, because reading them takes milliseconds.
    let needs_tls = endpoint.is_none_or(|endpoint| endpoint.starts_with("https"))
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

/// Address of the server; `None` for Amazon's.
async fn endpoint(settings: &S3Settings, provider: &ProviderConfig) -> Result<Option<String>, Cause> {
    // The variables are part of the settings by now.
    if settings.endpoint.is_some() || ignore_configured_endpoint_urls_provider(provider).await == Some(true) {
        return Ok(settings.endpoint.clone());
    }
    let endpoint = endpoint_url_provider(provider).await;
    if let Some(Err(reason)) = endpoint.as_deref().map(check_endpoint) {
        // The endpoint is not repeated in the message, since it may contain a password.
        let found = format!("`endpoint_url` of the profile {reason}; use the form `https://host:port`");
        return Err(Cause::new(found));
    }
    Ok(endpoint)
}

async fn region(
    settings: &S3Settings,
    has_endpoint: bool,
    provider: &ProviderConfig,
) -> Result<Region, Cause> {
    let in_settings = settings.region.clone().map(Region::new);
    let environment = EnvironmentVariableRegionProvider::new();
    let profile = ProfileFileRegionProvider::builder().configure(provider).build();
    // With an endpoint, the metadata service of Amazon's machines is not queried.
    let usual = Region::from_static(USUAL_REGION);
    let machine = ImdsRegionProvider::builder().configure(provider).build();
    let last: &dyn ProvideRegion = if has_endpoint { &usual } else { &machine };
    let places: [(&'static str, &dyn ProvideRegion); 4] = [
        ("the store", &in_settings),
        ("the environment", &environment),
        ("the profile", &profile),
        ("the machine's metadata service", last),
    ];
    for (place, provider) in places {
        match provider.region().await {
            // The SDK panics for control characters in a header.
            Some(region) if region.as_ref().contains(char::is_control) => {
                return Err(Cause::new(format!(
                    "the region of {place} contains a control character, such as the end of a line"
                )));
            }
            Some(region) => return Ok(region),
            None => {}
        }
    }
    Err(Cause::new("no region is known; set it in the store's settings or in AWS_REGION"))
}

/// Credentials that may change while the store is in use.
fn renewable(settings: &S3Settings, http: SharedHttpClient, region: Region) -> Option<RenewedCredentials> {
    let origin = match &settings.credentials {
        S3Credentials::Anonymous | S3Credentials::Static { .. } => return None,
        S3Credentials::File(path) => Origin::File(path.clone()),
        S3Credentials::Chain => Origin::Chain,
    };
    Some(RenewedCredentials {
        shared: SharedCredentials::of(origin, &region),
        search: Search { http, region },
    })
}

fn with_credentials(
    config: Builder,
    settings: &S3Settings,
    renewable: Option<RenewedCredentials>,
) -> Builder {
    match (&settings.credentials, renewable) {
        (S3Credentials::Static { access_key_id, secret_access_key, session_token }, _) => {
            let token = session_token.as_ref().map(|token| token.expose().to_owned());
            let (id, secret) = (access_key_id.clone(), secret_access_key.expose().to_owned());
            config.credentials_provider(Credentials::new(id, secret, token, None, "settings"))
        }
        // The SDK keeps none of them: its cache could not be told of a renewal.
        (_, Some(renewed)) => config.credentials_provider(renewed).identity_cache(IdentityCache::no_cache()),
        (_, None) => config.allow_no_auth(),
    }
}
