//! Catalogue of registered modules, with their versions, aliases and bytes, and of the keys of stores.

use std::fs::File;
use std::time::Duration;

use futures::StreamExt;
use penstock_pipeline::StdModule;
use penstock_storage::{BoundedStore, StoreError, check_prefix};
use penstock_types::spec::Name;
use penstock_types::text::shown;
use rusqlite::Connection;
use tokio::time::{Instant, timeout};

use crate::error::RunsError;
use crate::history::{modules, undamaged};
use crate::queries::{after, page};
use crate::runs::{Runs, apart};
use crate::wire::{
    MAX_KEYS, ModuleContent, ModuleDetail, ModuleFile, ModuleQuery, ModuleSummary, ModuleVersion, Page,
    StoreKeys, StoreSummary, VersionQuery, limit,
};

/// Alias that always points to the newest version; clients cannot set it.
const LATEST: &str = "latest";
/// Default number of keys in a list of a store's keys.
const KEYS: u32 = 100;
/// Time limit for listing keys. It is shorter than in a run, because a user waits for the list.
const LISTING: Duration = Duration::from_secs(30);

impl Runs {
    pub async fn modules(&self, query: ModuleQuery) -> Result<Page<ModuleSummary>, RunsError> {
        let after: String = after(query.cursor.as_ref())?.unwrap_or_default();
        let read = move |connection: &Connection| {
            let names = modules::names(connection, query.text.as_deref(), &after, limit(query.limit))?;
            let Page { items: names, next } = page(names, String::clone);
            let mut items = Vec::with_capacity(names.len());
            for name in names {
                let latest = undamaged("module", Ok(modules::resolve(connection, &name)))?;
                let Some(latest) = latest.flatten() else { continue };
                items.push(ModuleSummary {
                    versions: modules::count_of(connection, &name)?,
                    latest,
                    aliases: modules::aliases(connection, &name)?,
                    runs: modules::runs_of(connection, &name)?,
                    owner: modules::owner(connection, &name)?,
                    name,
                });
            }
            Ok(Page { items, next })
        };
        self.history().read(read).await
    }

    pub async fn module(&self, name: &str, query: VersionQuery) -> Result<ModuleDetail, RunsError> {
        let (name, before) = (name.to_owned(), after(query.cursor.as_ref())?);
        let read = move |connection: &Connection| {
            let found = modules::versions(connection, &name, before, limit(query.limit))?;
            let Page { items: versions, next } = page(found, |last| last.version);
            if versions.is_empty() && before.is_none() {
                return Err(RunsError::not_found("module", &name));
            }
            let (aliases, owner) = (modules::aliases(connection, &name)?, modules::owner(connection, &name)?);
            Ok(ModuleDetail { aliases, owner, versions, next, name })
        };
        self.history().read(read).await
    }

    /// Returns a version of a module: by number, by alias, or the `latest`.
    pub async fn module_version(&self, name: &str, version: &str) -> Result<ModuleVersion, RunsError> {
        self.find("module", &format!("{name}@{version}"), modules::resolve).await
    }

    pub async fn module_file(&self, name: &str, version: &str) -> Result<ModuleFile, RunsError> {
        let found = self.module_version(name, version).await?;
        let (digest, size_bytes) = (found.report.digest, found.report.size_bytes);
        let path = self.0.workshop.object(&digest);
        apart(self, move || {
            let content = match StdModule::of_digest(&digest) {
                Some(module) => ModuleContent::Program(module.bytes()),
                None => ModuleContent::File(File::open(&path).map_err(|source| RunsError::File {
                    what: "read",
                    path,
                    source,
                })?),
            };
            Ok(ModuleFile { digest, size_bytes, content })
        })
        .await
    }

    /// Removes a version, unless an alias points to it or a live run uses it. The number of a removed version is not used again.
    pub async fn delete_module(&self, name: &str, version: &str) -> Result<(), RunsError> {
        let number = self.module_version(name, version).await?.version;
        check_uploaded(name)?;
        let (own, workshop) = (name.to_owned(), self.0.workshop.clone());
        apart(self, move || {
            let _registering = workshop.registering();
            let removed = workshop.history.write_blocking(move |work| modules::remove(work, &own, number));
            workshop.remove_object(&removed??);
            Ok(())
        })
        .await
    }

    /// Sets an alias to a version. An existing alias is moved to it.
    pub async fn set_alias(&self, name: &str, alias: &str, version: u32) -> Result<ModuleDetail, RunsError> {
        check_alias(alias)?;
        check_uploaded(name)?;
        let (own, alias) = (name.to_owned(), alias.to_owned());
        let set = self.history().write(move |work| modules::set_alias(work, &own, &alias, version));
        match set.await? {
            true => self.module(name, VersionQuery::default()).await,
            false => Err(RunsError::not_found("module", &format!("{name}@{version}"))),
        }
    }

    pub async fn remove_alias(&self, name: &str, alias: &str) -> Result<(), RunsError> {
        let (own, wanted) = (name.to_owned(), alias.to_owned());
        let removed = self.history().write(move |work| modules::remove_alias(work, &own, &wanted));
        match removed.await? {
            true => Ok(()),
            false => Err(RunsError::not_found("alias", alias)),
        }
    }

    pub fn stores(&self) -> Vec<StoreSummary> {
        let stores = self.allowed_stores();
        let summary = |name: String| {
            let (store, kind) = stores.get(&name).zip(stores.kind(&name))?;
            let (reads, reads_used) = (store.reads().get() as u64, store.reads_used() as u64);
            let writable = !stores.is_read_only(&name);
            Some(StoreSummary { name, kind, writable, reads, reads_used })
        };
        stores.names().into_iter().filter_map(summary).collect()
    }

    pub async fn store_keys(
        &self,
        store: &str,
        prefix: &str,
        limit: Option<u32>,
    ) -> Result<StoreKeys, RunsError> {
        let most = limit.unwrap_or(KEYS).clamp(1, MAX_KEYS) as usize;
        let found = self.store(store)?;
        check_prefix(prefix)
            .map_err(|reason| RunsError::Refused(format!("the prefix is invalid: {reason}")))?;
        let late = |_| {
            let message = format!("the store `{store}` did not list its keys within {} s", LISTING.as_secs());
            RunsError::Busy(format!("{message}; check that it can be reached, and try again"))
        };
        timeout(LISTING, first_keys(found, prefix, most)).await.map_err(late)?
    }
}

async fn first_keys(store: &BoundedStore, prefix: &str, most: usize) -> Result<StoreKeys, RunsError> {
    let start = Instant::now();
    let mut pages = store.list(prefix);
    let mut items: Vec<String> = Vec::new();
    // One key more than is wanted shows that there are more.
    while items.len() <= most
        && let Some(page) = pages.next().await
    {
        let left = most + 1 - items.len();
        items.extend(page.map_err(storage)?.iter().take(left).map(ToOwned::to_owned));
    }
    let more = items.len() > most;
    items.truncate(most);
    Ok(StoreKeys { items, more, elapsed_s: start.elapsed().as_secs_f64() })
}

/// Converts the error of a store into an error for the client. A missing or invalid key is an error of the request.
pub(crate) fn storage(error: StoreError) -> RunsError {
    match &error {
        StoreError::NotFound { key, .. } => RunsError::not_found("object", key),
        StoreError::Refused { .. } | StoreError::TooLarge { .. } => RunsError::Refused(error.to_string()),
        _ => RunsError::Storage(error.to_string(), error),
    }
}

/// Refuses to change a module that is part of the program.
fn check_uploaded(name: &str) -> Result<(), RunsError> {
    match StdModule::find(name) {
        Some(_) => Err(RunsError::Conflict(format!("`{name}` is part of the program and cannot be changed"))),
        None => Ok(()),
    }
}

pub(crate) fn check_alias(alias: &str) -> Result<(), RunsError> {
    let is_name = Name::new(alias).is_some() && !alias.bytes().all(|byte| byte.is_ascii_digit());
    RunsError::refuse_unless(is_name && alias != LATEST, || {
        format!(
            "`{}` is not a valid alias: an alias has 1 to 128 letters, digits, `.`, `_` or `-`, starts with a letter or a digit, and is neither a number nor `latest`",
            shown(alias)
        )
    })
}
