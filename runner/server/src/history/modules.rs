//! The tables of modules: names, numbered versions, and aliases. The modules of the program are in no table and are added to each
//! answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_pipeline::{STD_VERSION, StdModule};
use penstock_types::run::RunId;
use penstock_wasm::ModuleReport;
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::error::{HistoryError, undamaged};
use super::query::{self, PageQuery, all, first, like};
use super::runs::now;
use crate::error::RunsError;
use crate::wire::{ModuleUpload, ModuleVersion};

const MAX_IN_USE: usize = 100;

/// Token on whose behalf a module is uploaded.
#[derive(Clone, Debug)]
pub(crate) struct Uploader {
    /// Name of the token; `None` on a server that requires no token.
    pub(crate) token: Option<Arc<str>>,
    /// True if the token may upload versions of all names, also of those that another token owns.
    pub(crate) is_free: bool,
}

impl Uploader {
    /// Returns the error of an upload of a version of a name that belongs to another token.
    pub(crate) fn refused_by(
        &self,
        connection: &Connection,
        name: &str,
    ) -> Result<Option<RunsError>, HistoryError> {
        let owner = owner(connection, name)?;
        let owner = owner.filter(|owner| !self.is_free && self.token.as_deref() != Some(owner));
        Ok(owner.map(|owner| RunsError::NotOwner { name: name.to_owned(), owner }))
    }
}

/// Name of the token to which the name of a module belongs; `None` if the name is unknown, or belongs to no token.
pub(crate) fn owner(connection: &Connection, name: &str) -> Result<Option<String>, HistoryError> {
    Ok(first::<Option<String>>(connection, "SELECT owner FROM module_names WHERE name = ?1", [name])?
        .flatten())
}

/// Registers a module as the next version of its name, which belongs to the uploader if it is new; if the same bytes are already
/// registered, their version stays. Also returns true if the name had no owner and belongs to the uploader from now on, although the
/// uploader did not create it.
pub(crate) fn insert(
    transaction: &Transaction<'_>,
    report: &ModuleReport,
    alias: Option<&str>,
    by: &Uploader,
) -> Result<Result<(ModuleUpload, bool), RunsError>, HistoryError> {
    let name = &report.manifest.name;
    let known = first(transaction, "SELECT version FROM modules WHERE digest = ?1", [&report.digest])?;
    let mut took_name = false;
    let version = match known {
        Some(version) => version,
        None => {
            if let Some(refused) = by.refused_by(transaction, name)? {
                return Ok(Err(refused));
            }
            if !by.is_free {
                let take = "UPDATE module_names SET owner = ?2 WHERE name = ?1 AND owner IS NULL";
                took_name = transaction.execute(take, params![name, by.token])? > 0;
            }
            let version: u32 = transaction.query_row(
                "INSERT INTO module_names (name, last_version, owner) VALUES (?1, 1, ?2) \
                 ON CONFLICT (name) DO UPDATE SET last_version = last_version + 1 RETURNING last_version",
                params![name, by.token],
                |row| row.get(0),
            )?;
            transaction.execute(
                "INSERT INTO modules (name, version, digest, report, uploaded_at) VALUES (?1, ?2, ?3, ?4, ?5)",
                params![name, version, report.digest, serde_json::to_string(report)?, now()],
            )?;
            version
        }
    };
    if let Some(alias) = alias {
        set_alias(transaction, name, alias, version)?;
    }
    let before = "SELECT digest FROM modules WHERE name = ?1 AND version < ?2 ORDER BY version DESC LIMIT 1";
    let previous = first(transaction, before, params![name, version])?;
    let missing = || HistoryError::Damaged("the version that was just written is missing".to_owned());
    let version = find(transaction, name, version)?.ok_or_else(missing)?;
    Ok(Ok((ModuleUpload { version, created: known.is_none(), previous }, took_name)))
}

/// Sets an alias to a version; returns false if there is no such version.
pub(crate) fn set_alias(
    transaction: &Transaction<'_>,
    name: &str,
    alias: &str,
    version: u32,
) -> Result<bool, HistoryError> {
    let there = transaction
        .prepare_cached("SELECT 1 FROM modules WHERE name = ?1 AND version = ?2")?
        .exists(params![name, version])?;
    if there {
        transaction.execute(
            "INSERT INTO aliases (name, alias, version) VALUES (?1, ?2, ?3) \
             ON CONFLICT (name, alias) DO UPDATE SET version = excluded.version",
            params![name, alias, version],
        )?;
    }
    Ok(there)
}

pub(crate) fn remove_alias(
    transaction: &Transaction<'_>,
    name: &str,
    alias: &str,
) -> Result<bool, HistoryError> {
    Ok(transaction.execute("DELETE FROM aliases WHERE name = ?1 AND alias = ?2", [name, alias])? > 0)
}

/// Removes a version unless an alias or a live run needs it; returns the digest of its bytes, which no version has any more.
pub(crate) fn remove(
    transaction: &Transaction<'_>,
    name: &str,
    version: u32,
) -> Result<Result<String, RunsError>, HistoryError> {
    let place = params![name, version];
    let digest: Option<String> =
        first(transaction, "SELECT digest FROM modules WHERE name = ?1 AND version = ?2", place)?;
    let Some(digest) = digest else {
        return Ok(Err(RunsError::not_found("module", &format!("{name}@{version}"))));
    };
    let alias: Option<String> =
        first(transaction, "SELECT alias FROM aliases WHERE name = ?1 AND version = ?2", place)?;
    if let Some(alias) = alias {
        return Ok(Err(RunsError::Conflict(format!(
            "the alias `{alias}` points to this version; move or remove the alias first"
        ))));
    }
    if let Some(run) = in_use(transaction, &digest)?.into_iter().next() {
        let why = format!("the run `{run}` uses this version and has not ended");
        return Ok(Err(RunsError::Conflict(why)));
    }
    transaction.execute("DELETE FROM modules WHERE name = ?1 AND version = ?2", params![name, version])?;
    Ok(Ok(digest))
}

/// Finds the version that `written` names: a version number, an alias, or `latest`.
fn version_of(connection: &Connection, name: &str, written: &str) -> Result<Option<u32>, HistoryError> {
    if StdModule::find(name).is_some() {
        return Ok(StdModule::find(&format!("{name}@{written}")).map(|_| STD_VERSION));
    }
    let found = if written == "latest" {
        let query = "SELECT version FROM modules WHERE name = ?1 ORDER BY version DESC LIMIT 1";
        first(connection, query, [name])
    } else if let Some(number) = number(written) {
        let query = "SELECT version FROM modules WHERE name = ?1 AND version = ?2";
        first(connection, query, params![name, number])
    } else {
        first(connection, "SELECT version FROM aliases WHERE name = ?1 AND alias = ?2", [name, written])
    };
    Ok(found?)
}

/// Parses the number of a version, without a sign and without leading zeros.
fn number(written: &str) -> Option<u32> {
    written.parse().ok().filter(|number: &u32| number.to_string() == written)
}

/// Finds the version that `written` names in a document: `name`, `name@version-or-alias`, or a digest.
pub(crate) fn resolve(connection: &Connection, written: &str) -> Result<Option<ModuleVersion>, HistoryError> {
    if written.starts_with("sha256:") {
        let query = "SELECT name, version FROM modules WHERE digest = ?1";
        let found =
            connection.query_row(query, [written], |row| <(String, u32)>::try_from(row)).optional()?;
        let found = found
            .or_else(|| StdModule::of_digest(written).map(|module| (module.name().to_owned(), STD_VERSION)));
        return found.map_or(Ok(None), |(name, version)| find(connection, &name, version));
    }
    let (name, version) = written.split_once('@').unwrap_or((written, "latest"));
    match version_of(connection, name, version)? {
        Some(version) => find(connection, name, version),
        None => Ok(None),
    }
}

pub(crate) fn find(
    connection: &Connection,
    name: &str,
    version: u32,
) -> Result<Option<ModuleVersion>, HistoryError> {
    let place = params![name, version];
    let (report, uploaded_at) = if let Some(module) = StdModule::find(&format!("{name}@{version}")) {
        (module.report().clone(), None)
    } else {
        let query = "SELECT report, uploaded_at FROM modules WHERE name = ?1 AND version = ?2";
        let found = connection.query_row(query, place, |row| <(String, String)>::try_from(row)).optional()?;
        let Some((report, uploaded_at)) = found else { return Ok(None) };
        (serde_json::from_str::<ModuleReport>(&report)?, Some(uploaded_at))
    };
    let aliases = "SELECT alias FROM aliases WHERE name = ?1 AND version = ?2 ORDER BY alias";
    let runs = "SELECT count(*) FROM run_modules WHERE digest = ?1";
    Ok(Some(ModuleVersion {
        name: name.to_owned(),
        version,
        aliases: all(connection, aliases, place)?,
        uploaded_at,
        runs: query::count(connection, runs, [&report.digest])?,
        in_use: in_use(connection, &report.digest)?,
        report,
    }))
}

/// Returns the versions of a module with numbers below `before`, newest first, and true if there are more.
pub(crate) fn versions(
    connection: &Connection,
    name: &str,
    before: Option<u32>,
    limit: u32,
) -> Result<(Vec<ModuleVersion>, bool), HistoryError> {
    let (numbers, more) = match StdModule::find(name) {
        Some(_) => (vec![STD_VERSION], false),
        None => PageQuery::default()
            .with("name = ?", Some(name.to_owned()))
            .with("version < ?", before)
            .read(connection, ("module", "version FROM modules", "version DESC"), limit, |row| {
                Ok(Ok(row.get(0)?))
            })?,
    };
    let found = numbers.into_iter().map(|number| undamaged("module", Ok(find(connection, name, number))));
    let found: Result<Vec<_>, HistoryError> =
        found.filter_map(|found| found.map(Option::flatten).transpose()).collect();
    Ok((found?, more))
}

pub(crate) fn aliases(connection: &Connection, name: &str) -> Result<BTreeMap<String, u32>, HistoryError> {
    let mut statement = connection.prepare_cached("SELECT alias, version FROM aliases WHERE name = ?1")?;
    Ok(statement.query_map([name], |row| row.try_into())?.collect::<rusqlite::Result<_>>()?)
}

/// Lists the names after `after` that have at least one version, in order; also returns true if there are more.
pub(crate) fn names(
    connection: &Connection,
    text: Option<&str>,
    after: &str,
    limit: u32,
) -> Result<(Vec<String>, bool), HistoryError> {
    let (mut names, more) = PageQuery::default()
        .with("name > ?", Some(after.to_owned()))
        .with("name LIKE ? ESCAPE '\\'", text.map(like))
        .read(connection, ("name", "DISTINCT name FROM modules", "name"), limit, |row| Ok(Ok(row.get(0)?)))?;
    let text = text.unwrap_or_default().to_ascii_lowercase();
    let own = StdModule::all().iter().map(StdModule::name);
    names.extend(own.filter(|name| *name > after && name.contains(&text)).map(str::to_owned));
    names.sort_unstable();
    let more = more || names.len() > limit as usize;
    names.truncate(limit as usize);
    Ok((names, more))
}

pub(crate) fn runs_of(connection: &Connection, name: &str) -> Result<u64, HistoryError> {
    query::count(
        connection,
        "SELECT count(DISTINCT run) FROM run_modules \
         WHERE digest = ?2 OR digest IN (SELECT digest FROM modules WHERE name = ?1)",
        [name, StdModule::find(name).map_or("", |module| &module.report().digest)],
    )
}

pub(crate) fn count_of(connection: &Connection, name: &str) -> Result<u64, HistoryError> {
    if StdModule::find(name).is_some() {
        return Ok(1);
    }
    query::count(connection, "SELECT count(*) FROM modules WHERE name = ?1", [name])
}

pub(crate) fn count(connection: &Connection) -> Result<u64, HistoryError> {
    query::count(connection, "SELECT count(*) FROM modules", [])
}

pub(crate) fn has(connection: &Connection, digest: &str) -> Result<bool, HistoryError> {
    Ok(connection.prepare_cached("SELECT 1 FROM modules WHERE digest = ?1")?.exists([digest])?)
}

fn in_use(connection: &Connection, digest: &str) -> Result<Vec<RunId>, HistoryError> {
    let query = "SELECT id FROM runs WHERE state IN ('queued', 'running', 'draining') \
         AND id IN (SELECT run FROM run_modules WHERE digest = ?1) ORDER BY id LIMIT ?2";
    let runs: Vec<String> = all(connection, query, params![digest, MAX_IN_USE as i64])?;
    Ok(runs.into_iter().map(RunId::from).collect())
}
