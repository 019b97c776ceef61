//! The audit log: records each change and the client that made it.

use rusqlite::{Connection, Row, params};

use crate::error::RunsError;
use crate::history::{HistoryError, PageQuery, now, transact};
use crate::queries::{after, page};
use crate::runs::Runs;
use crate::wire::{AuditEntry, AuditQuery, Page, limit};

/// Maximum number of entries in the history; a further entry replaces the oldest.
const MOST: u32 = 100_000;

impl Runs {
    /// Writes an entry to the log and to the history, with the time of the call. Does not wait for the disk; an entry that the
    /// history cannot store is in the log only.
    pub fn record(&self, token: &str, address: &str, action: &str, target: &str, status: Option<u16>) {
        let [token, address, action, target] = [token, address, action, target].map(str::to_owned);
        let entry = AuditEntry { at: now(), token, address, action, target, status };
        log(&entry);
        self.history().work_later(
            move |connection| transact(connection, |transaction| insert(transaction, &entry, MOST)),
            |error| tracing::error!(%error, "failed to store an entry of the audit log"),
        );
    }

    /// Lists a page of the audit log, newest first, which includes the entries of all earlier calls of [`Self::record`].
    pub async fn audit(&self, query: AuditQuery) -> Result<Page<AuditEntry>, RunsError> {
        let (before, limit) = (after(query.cursor.as_ref())?, limit(query.limit));
        // Waits until the writer has processed all work that was queued before this call.
        self.history().work(|_| Ok(())).await?;
        let found = self.history().read(move |connection| list(connection, before, limit)).await?;
        let Page { items, next } = page(found, |(number, _)| *number);
        Ok(Page { items: items.into_iter().map(|(_, entry)| entry).collect(), next })
    }
}

/// Records that the name of a module, which had no owner, belongs to a token from now on. The upload has an entry of its own.
pub(crate) fn record_owner(connection: &Connection, name: &str, token: &str) -> Result<(), HistoryError> {
    let (token, action, target) = (token.to_owned(), "own_module".to_owned(), format!("modules/{name}"));
    let entry = AuditEntry { at: now(), token, action, target, status: Some(201), ..AuditEntry::default() };
    log(&entry);
    insert(connection, &entry, MOST)
}

fn log(AuditEntry { at: _, token, address, action, target, status }: &AuditEntry) {
    tracing::info!(target: "penstock_server::audit", token, address, action, target, status);
}

/// Adds an entry, and removes the oldest if there are more than `most`.
fn insert(connection: &Connection, entry: &AuditEntry, most: u32) -> Result<(), HistoryError> {
    let AuditEntry { at, token, address, action, target, status } = entry;
    connection.execute(
        "INSERT INTO audit (at, token, address, action, target, status) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![at, token, address, action, target, status],
    )?;
    // Row numbers have no gaps, because only the oldest entry is ever removed.
    let last_removed = connection.last_insert_rowid() - i64::from(most);
    connection.execute("DELETE FROM audit WHERE number <= ?1", [last_removed])?;
    Ok(())
}

/// Lists the entries with numbers below `before`, newest first, each with its number; also returns true if there are more.
fn list(
    connection: &Connection,
    before: Option<i64>,
    limit: u32,
) -> Result<(Vec<(i64, AuditEntry)>, bool), HistoryError> {
    let columns = "number, at, token, address, action, target, status FROM audit";
    let query = PageQuery::default().with("number < ?", before);
    query.read(connection, ("audit entry", columns, "number DESC"), limit, read)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Result<(i64, AuditEntry), HistoryError>> {
    let (number, at, token, address, action, target, status) = row.try_into()?;
    Ok(Ok((number, AuditEntry { at, token, address, action, target, status })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::migrate;

    #[test]
    fn the_newest_entries_are_kept_and_listed_in_pages() {
        let mut file = Connection::open_in_memory().unwrap();
        migrate(&mut file).unwrap();
        for status in 1..=5 {
            let entry = AuditEntry { status: Some(status), ..AuditEntry::default() };
            insert(&file, &entry, 3).unwrap();
        }
        let statuses = |before| {
            let (entries, more) = list(&file, before, 2).unwrap();
            let statuses: Vec<_> = entries.iter().map(|(_, entry)| entry.status.unwrap()).collect();
            (statuses, entries.last().unwrap().0, more)
        };
        assert_eq!(statuses(None), (vec![5, 4], 4, true));
        assert_eq!(statuses(Some(4)), (vec![3], 3, false));
    }
}
