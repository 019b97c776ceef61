//! Credentials that are renewed before their end, and after the service has refused them, once for all stores of the process.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};

use aws_config::ecs::EcsCredentialsProvider;
use aws_config::environment::EnvironmentVariableCredentialsProvider;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::profile::ProfileFileCredentialsProvider;
#[expect(deprecated, reason = "the new names are in a crate that nothing else here needs")]
use aws_config::profile::profile_file::{ProfileFileKind, ProfileFiles};
use aws_config::provider_config::ProviderConfig;
use aws_config::web_identity_token::WebIdentityTokenCredentialsProvider;
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, future};
use aws_sdk_s3::config::{BehaviorVersion, Region, SharedHttpClient};
use penstock_engine::lock::locked;
use tokio::time::{sleep, timeout};

use crate::observe::now;
use crate::remote::service::Renewal;
use crate::remote::throttle::Throttle;

/// Time before the end of credentials from which on they are renewed; of short-lived ones, half of their time.
const MARGIN: Duration = Duration::from_secs(5 * 60);

/// Time after which credentials without a known end are looked up again.
const UNKNOWN_END: Duration = Duration::from_secs(15 * 60);

/// Time limit of a search for credentials.
const MOST_TIME: Duration = Duration::from_secs(15);

/// Minimum time between two searches before the end of credentials.
const PAUSE: Duration = Duration::from_secs(1);

/// Number of searches that refusals may start at once, and per second after that: in a file, and of services.
const FILE_SEARCHES: (f64, f64) = (20.0, 10.0);
const CHAIN_SEARCHES: (f64, f64) = (5.0, 1.0);

/// Number of times that a credentials file is read if it holds no credentials: it may be in the middle of a replacement.
const READS: u32 = 3;

/// Time between two reads of a credentials file without credentials.
const BETWEEN_READS: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The standard places, in their order.
    Chain,
    File(PathBuf),
}

/// Credentials of one origin, shared by all stores that use it.
pub(crate) struct SharedCredentials {
    origin: Origin,
    state: Mutex<State>,
    /// Held during a search, so that one runs at a time.
    search: tokio::sync::Mutex<()>,
    /// Searches that refusals may start.
    searches: Throttle,
}

#[derive(Default)]
struct State {
    current: Option<Credentials>,
    /// Number of different credentials found so far.
    generation: u64,
    /// Time of the next regular search.
    due: Option<Instant>,
    /// Time and reason of the last search, if it failed.
    failed: Option<(Instant, Absent)>,
}

/// Reason why there are no credentials. Contains no text of a provider, which may contain secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Absent {
    #[error(
        "no credentials were found in the environment, the profile, a web identity, the container's role or the machine's role{}; set \
         AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or `credentials_file` of the store; a public bucket needs \
         `\"anonymous\": true` alone",
        hint()
    )]
    InChain,
    #[error(
        "`credentials_file` of the store has no credentials in the profile that AWS_PROFILE names, `default` without it"
    )]
    InFile,
    #[error("the credentials of {place} cannot be used: {reason}")]
    Failed { place: &'static str, reason: &'static str },
    #[error("the {part} of {place} contains a control character, such as the end of a line")]
    Unsendable { place: &'static str, part: &'static str },
    #[error("the search for credentials took longer than {MOST_TIME:?}")]
    TimedOut,
}

impl Absent {
    const INCOMPLETE: &str = "they are incomplete, or of a form that is not supported";

    /// True if a file may have been read while it was written.
    fn may_change(&self) -> bool {
        matches!(self, Self::InFile | Self::Failed { reason: Self::INCOMPLETE, .. })
    }

    /// Failure of the place that has credentials.
    fn of(place: &'static str, error: &CredentialsError) -> Self {
        let reason = match error {
            CredentialsError::ProviderTimedOut(_) => return Self::TimedOut,
            CredentialsError::InvalidConfiguration(_) => Self::INCOMPLETE,
            _ => "the service or program that issues them failed",
        };
        Self::Failed { place, reason }
    }
}

/// Returns the credentials that were found in `place`, if they can be sent: the SDK panics for control characters in a header.
fn sendable(place: &'static str, found: Credentials) -> Result<Credentials, Absent> {
    let (id, secret, token) = parts(&found);
    let texts = [("access key id", id), ("secret", secret), ("session token", token.unwrap_or_default())];
    let unsendable = texts.into_iter().find(|(_, text)| text.contains(char::is_control));
    match unsendable.map(|(part, _)| part) {
        Some(part) => Err(Absent::Unsendable { place, part }),
        None => Ok(found),
    }
}

/// Addition to a message for variables that are set in part.
fn hint() -> &'static str {
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    match (is_set("AWS_ACCESS_KEY_ID"), is_set("AWS_SECRET_ACCESS_KEY")) {
        (true, false) => " (AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not)",
        (false, true) => " (AWS_SECRET_ACCESS_KEY is set, but AWS_ACCESS_KEY_ID is not)",
        _ => "",
    }
}

/// Properties that decide which credentials are found.
#[derive(PartialEq, Eq)]
struct Key {
    origin: Origin,
    region: Region,
    variables: BTreeMap<OsString, OsString>,
}

/// Credentials in use by stores of this process.
static IN_USE: Mutex<Vec<(Key, Weak<SharedCredentials>)>> = Mutex::new(Vec::new());

impl SharedCredentials {
    /// Returns the credentials of `origin`, the same ones for all stores of this process as long as the variables for AWS are the same.
    pub(crate) fn of(origin: Origin, region: &Region) -> Arc<Self> {
        let variables = env::vars_os()
            .filter(|(name, _)| name == "HOME" || name.to_str().is_some_and(|name| name.starts_with("AWS_")));
        let key = Key { origin, region: region.clone(), variables: variables.collect() };
        let mut in_use = locked(&IN_USE);
        in_use.retain(|(_, credentials)| credentials.strong_count() > 0);
        let found = in_use.iter().find(|(other, _)| *other == key).and_then(|(_, found)| found.upgrade());
        found.unwrap_or_else(|| {
            let made = Arc::new(Self::new(key.origin.clone()));
            in_use.push((key, Arc::downgrade(&made)));
            made
        })
    }

    fn new(origin: Origin) -> Self {
        let (at_once, per_second) = match origin {
            Origin::Chain => CHAIN_SEARCHES,
            Origin::File(_) => FILE_SEARCHES,
        };
        Self {
            origin,
            state: Mutex::default(),
            search: tokio::sync::Mutex::default(),
            searches: Throttle::new(at_once, per_second),
        }
    }

    /// Number of different credentials found so far.
    pub(crate) fn generation(&self) -> u64 {
        locked(&self.state).generation
    }

    /// Returns the current credentials. Searches for them first if there are none or if their end is near; while they are valid, only one
    /// caller waits for the search, and a failed search changes nothing.
    async fn get(&self, search: &Search) -> Result<Credentials, Absent> {
        let usable = || {
            let state = locked(&self.state);
            let is_due = state.due.is_none_or(|due| due <= now());
            match (&state.current, state.failed) {
                (Some(current), _) if !is_due => Some(Ok(current.clone())),
                (None, Some((at, absent))) if at.elapsed() < PAUSE => Some(Err(absent)),
                _ => None,
            }
        };
        if let Some(usable) = usable() {
            return usable;
        }
        let is_valid = |current: &Credentials| current.expiry().is_none_or(|end| end > SystemTime::now());
        let valid = locked(&self.state).current.clone().filter(is_valid);
        let _held = match (self.search.try_lock(), valid) {
            (Ok(held), _) => held,
            (Err(_), Some(valid)) => return Ok(valid),
            (Err(_), None) => self.search.lock().await,
        };
        match usable() {
            Some(usable) => usable,
            None => self.search(search).await,
        }
    }

    /// Searches for other credentials than the refused ones, which are of `generation` at the latest, unless another caller has found
    /// some meanwhile. The number of searches per second is limited; beyond it, there are no others.
    pub(crate) async fn renew(&self, generation: u64, search: &Search) -> Renewal<Absent> {
        let _held = self.search.lock().await;
        if self.generation() > generation {
            return Renewal::Other;
        }
        if self.searches.reserve(now(), Duration::ZERO).is_some() {
            drop(self.search(search).await);
            if self.generation() > generation {
                return Renewal::Other;
            }
        }
        locked(&self.state).failed.map_or(Renewal::Same, |(_, absent)| Renewal::Failed(absent))
    }

    /// Searches, and keeps what is found. Returns the credentials known so far if nothing is found.
    async fn search(&self, search: &Search) -> Result<Credentials, Absent> {
        let found = timeout(MOST_TIME, search.find(&self.origin)).await.unwrap_or(Err(Absent::TimedOut));
        // Copied without the properties that providers add, which would be copied for each request.
        let found = found.map(|found| {
            let (id, secret, token) = parts(&found);
            Credentials::new(id, secret, token.map(str::to_owned), found.expiry(), "penstock")
        });
        let mut state = locked(&self.state);
        let at = now();
        match found {
            Ok(found) => {
                let is_other = state.current.as_ref().is_none_or(|known| parts(known) != parts(&found));
                state.generation += u64::from(is_other);
                let left =
                    found.expiry().map(|end| end.duration_since(SystemTime::now()).unwrap_or_default());
                state.current = Some(found.clone());
                state.due = Some(at + time_to_renewal(left));
                state.failed = None;
                Ok(found)
            }
            Err(absent) => {
                state.failed = Some((at, absent));
                state.due = Some(at + PAUSE);
                state.current.clone().ok_or(absent)
            }
        }
    }
}

/// Time until credentials are renewed that are valid for another `left`, if their end is known.
fn time_to_renewal(left: Option<Duration>) -> Duration {
    left.map_or(UNKNOWN_END, |left| left - MARGIN.min(left / 2)).max(PAUSE)
}

fn parts(of: &Credentials) -> (&str, &str, Option<&str>) {
    (of.access_key_id(), of.secret_access_key(), of.session_token())
}

/// Client and region of the requests by which credentials are found.
#[derive(Clone)]
pub(crate) struct Search {
    pub(crate) http: SharedHttpClient,
    pub(crate) region: Region,
}

impl Search {
    /// Settings for providers. They keep the files of profiles that they have read, so each search has new ones.
    pub(crate) fn config(&self) -> ProviderConfig {
        ProviderConfig::default()
            .with_behavior_version(Some(BehaviorVersion::latest()))
            .with_http_client(self.http.clone())
            .with_region(Some(self.region.clone()))
    }

    async fn find(&self, origin: &Origin) -> Result<Credentials, Absent> {
        match origin {
            Origin::Chain => self.find_in_chain().await,
            Origin::File(path) => {
                let mut found = self.find_in_file(path.clone()).await;
                for _ in 1..READS {
                    if !found.as_ref().is_err_and(Absent::may_change) {
                        break;
                    }
                    sleep(BETWEEN_READS).await;
                    found = self.find_in_file(path.clone()).await;
                }
                found
            }
        }
    }

    async fn find_in_file(&self, path: PathBuf) -> Result<Credentials, Absent> {
        #[expect(deprecated, reason = "see where it is imported")]
        let files = ProfileFiles::builder().with_file(ProfileFileKind::Credentials, path).build();
        let file = ProfileFileCredentialsProvider::builder().configure(&self.config()).profile_files(files);
        const PLACE: &str = "`credentials_file` of the store";
        match file.build().provide_credentials().await {
            Ok(found) => sendable(PLACE, found),
            Err(CredentialsError::CredentialsNotLoaded(_)) => Err(Absent::InFile),
            Err(error) => Err(Absent::of(PLACE, &error)),
        }
    }

    /// Asks the places of the SDK's chain in its order. Another place is asked only if those before it have no credentials at all.
    async fn find_in_chain(&self) -> Result<Credentials, Absent> {
        const MACHINE: &str = "the machine's role";
        let config = self.config();
        let environment = EnvironmentVariableCredentialsProvider::new();
        let profile = ProfileFileCredentialsProvider::builder().configure(&config).build();
        let web_identity = WebIdentityTokenCredentialsProvider::builder().configure(&config).build();
        let container = EcsCredentialsProvider::builder().configure(&config).build();
        let machine = ImdsCredentialsProvider::builder().configure(&config).build();
        let places: [(&'static str, &dyn ProvideCredentials); 5] = [
            ("the environment", &environment),
            ("the profile", &profile),
            ("the web identity", &web_identity),
            ("the container's role", &container),
            (MACHINE, &machine),
        ];
        for (place, provider) in places {
            match provider.provide_credentials().await {
                Ok(found) => return sendable(place, found),
                Err(CredentialsError::CredentialsNotLoaded(_)) => {}
                // The service of another cloud or of a proxy may answer in place of the machine's metadata service.
                Err(CredentialsError::ProviderError(_)) if place == MACHINE => {}
                Err(error) => return Err(Absent::of(place, &error)),
            }
        }
        Err(Absent::InChain)
    }
}

/// Credentials for a client of the SDK, which must not keep them.
#[derive(Clone)]
pub(crate) struct RenewedCredentials {
    pub(crate) shared: Arc<SharedCredentials>,
    pub(crate) search: Search,
}

impl ProvideCredentials for RenewedCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(async {
            self.shared.get(&self.search).await.map_err(CredentialsError::provider_error)
        })
    }
}

impl fmt::Debug for RenewedCredentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RenewedCredentials").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use futures::future::join_all;

    use super::*;

    fn search() -> Search {
        let http = aws_smithy_http_client::Builder::new().build_http();
        Search { http, region: Region::from_static("us-east-1") }
    }

    fn write(file: &Path, token: &str) {
        let keys = "aws_access_key_id = id\naws_secret_access_key = secret";
        fs::write(file, format!("[default]\n{keys}\naws_session_token = {token}\n")).unwrap();
    }

    #[test]
    fn credentials_are_renewed_before_their_end() {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        for (left, expected) in [
            (None, minutes(15)),
            (Some(minutes(60)), minutes(55)),
            (Some(minutes(10)), minutes(5)),
            (Some(minutes(4)), minutes(2)),
            (Some(Duration::ZERO), Duration::from_secs(1)),
        ] {
            assert_eq!(time_to_renewal(left), expected, "{left:?}");
        }
    }

    #[tokio::test]
    async fn a_file_that_changes_gives_other_credentials_and_a_broken_one_the_known_ones() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        write(&file, "one");
        let (shared, search) = (SharedCredentials::new(Origin::File(file.clone())), search());
        let token = async || shared.get(&search).await.unwrap().session_token().map(str::to_owned);
        assert_eq!(token().await.as_deref(), Some("one"));
        assert_eq!(shared.renew(1, &search).await, Renewal::Same);
        write(&file, "two");
        assert_eq!(token().await.as_deref(), Some("one"), "they are not read anew for each request");
        assert_eq!(shared.renew(1, &search).await, Renewal::Other);
        assert_eq!(
            shared.renew(1, &search).await,
            Renewal::Other,
            "they are others than those of the caller"
        );
        for (broken, expected) in [
            ("", Absent::InFile),
            (
                "[default]\naws_access_key_id = id\n",
                Absent::of("`credentials_file` of the store", &CredentialsError::invalid_configuration("")),
            ),
        ] {
            fs::write(&file, broken).unwrap();
            assert_eq!(shared.renew(2, &search).await, Renewal::Failed(expected));
            assert_eq!(token().await.as_deref(), Some("two"));
        }
    }

    #[tokio::test]
    async fn credentials_with_control_characters_are_refused_by_their_part_and_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let (shared, search) = (SharedCredentials::new(Origin::File(file.clone())), search());
        for part in ["access key id", "secret", "session token"] {
            let canary = |of| if of == part { "can\u{1}ary" } else { "fine" };
            let keys = format!("aws_access_key_id = {}\n", canary("access key id"));
            let keys = format!("{keys}aws_secret_access_key = {}\n", canary("secret"));
            let keys = format!("[default]\n{keys}aws_session_token = {}\n", canary("session token"));
            fs::write(&file, keys).unwrap();
            let found = search.find(&Origin::File(file.clone())).await.unwrap_err();
            assert_eq!(
                found.to_string(),
                format!(
                    "the {part} of `credentials_file` of the store contains a control character, such as the end of a line"
                )
            );
        }
        assert!(shared.get(&search).await.is_err());
        write(&file, "one");
        assert_eq!(shared.renew(0, &search).await, Renewal::Other);
        write(&file, "tw\u{7f}o");
        assert!(matches!(shared.renew(1, &search).await, Renewal::Failed(Absent::Unsendable { .. })));
        assert_eq!(shared.get(&search).await.unwrap().session_token(), Some("one"));
    }

    #[tokio::test]
    async fn one_search_serves_all_callers() {
        let folder = tempfile::tempdir().unwrap();
        let [file, program, log] = ["keys", "issue", "log"].map(|name| folder.path().join(name));
        let answer = r#"{"Version": 1, "AccessKeyId": "id", "SecretAccessKey": "secret", "SessionToken": "'$(wc -l < LOG)'"}"#;
        let answer = answer.replace("LOG", log.to_str().unwrap());
        fs::write(&program, format!("#!/bin/sh\necho >> {}\necho '{answer}'\n", log.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(&file, format!("[default]\ncredential_process = {}\n", program.display())).unwrap();
        let (shared, search) = (SharedCredentials::new(Origin::File(file)), search());
        let searches = || fs::read_to_string(&log).unwrap().lines().count();
        join_all((0..50).map(|_| shared.get(&search))).await.into_iter().for_each(|found| {
            assert_eq!(found.unwrap().session_token(), Some("1"));
        });
        assert_eq!(searches(), 1);
        let renewals = join_all((0..50).map(|_| shared.renew(1, &search))).await;
        assert!(renewals.iter().all(|renewal| *renewal == Renewal::Other));
        assert_eq!(searches(), 2);
        // A service that issues others each time is not asked without end.
        let start = now();
        for _ in 0..100 {
            shared.renew(shared.generation(), &search).await;
        }
        let most = 22 + 10 * (start.elapsed().as_secs() as usize + 1);
        assert!((3..=most).contains(&searches()), "{}", searches());
    }
}
