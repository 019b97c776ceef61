//! The audit log: records each change and the client that made it.

use rusqlite::Connection;

use crate::error::RunsError;
use crate::history::{HistoryError, audit, now, transact};
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
        let handed = self.history().hand_over(Box::new(move |connection| {
            if let Err(error) = transact(connection, |transaction| store(transaction, &entry)) {
                tracing::error!(%error, "failed to store an entry of the audit log");
            }
        }));
        if let Err(error) = handed {
            tracing::error!(%error, "failed to store an entry of the audit log");
        }
    }

    /// Lists a page of the audit log, newest first, which includes the entries of all earlier calls of [`Self::record`].
    pub async fn audit(&self, query: AuditQuery) -> Result<Page<AuditEntry>, RunsError> {
        let (before, limit) = (after(query.cursor.as_ref())?, limit(query.limit));
        // Waits until the writer has processed all work that was queued before this call.
        self.history().work(|_| Ok(())).await?;
        let found = self.history().read(move |connection| audit::list(connection, before, limit)).await?;
        let Page { items, next } = page(found, |(number, _)| *number);
        Ok(Page { items: items.into_iter().map(|(_, entry)| entry).collect(), next })
    }
}

/// Records that the name of a module, which had no owner, belongs to a token from now on. The upload has an entry of its own.
pub(crate) fn record_owner(connection: &Connection, name: &str, token: &str) -> Result<(), HistoryError> {
    let (token, action, target) = (token.to_owned(), "own_module".to_owned(), format!("modules/{name}"));
    let entry = AuditEntry { at: now(), token, action, target, status: Some(201), ..AuditEntry::default() };
    log(&entry);
    store(connection, &entry)
}

fn log(AuditEntry { at: _, token, address, action, target, status }: &AuditEntry) {
    tracing::info!(target: "penstock_server::audit", token, address, action, target, status);
}

fn store(connection: &Connection, entry: &AuditEntry) -> Result<(), HistoryError> {
    audit::insert(connection, entry, MOST)
}
