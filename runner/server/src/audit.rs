//! The audit log: who changed what.

use crate::error::RunsError;
use crate::history::{audit, now, transact};
use crate::queries::{after, page};
use crate::runs::Runs;
use crate::wire::{AuditEntry, AuditQuery, Page, limit};

/// Entries that the history keeps; of more, the oldest go.
const MOST: u32 = 100_000;

impl Runs {
    /// Writes an entry to the log and to the history, with the time of the call. Waits for nothing; an entry that the history cannot
    /// take is in the log alone.
    pub fn record(&self, token: &str, address: &str, action: &str, target: &str, status: Option<u16>) {
        tracing::info!(target: "penstock_server::audit", token, address, action, target, status);
        let [token, address, action, target] = [token, address, action, target].map(str::to_owned);
        let entry = AuditEntry { at: now(), token, address, action, target, status };
        let handed = self.history().hand_over(Box::new(move |connection| {
            if let Err(error) = transact(connection, |transaction| audit::insert(transaction, &entry, MOST)) {
                tracing::error!(%error, "an entry of the audit log was not kept");
            }
        }));
        if let Err(error) = handed {
            tracing::error!(%error, "an entry of the audit log was not kept");
        }
    }

    /// Entries of the audit log, newest first, a page at a time: those of all calls of [`Self::record`] before.
    pub async fn audit(&self, query: AuditQuery) -> Result<Page<AuditEntry>, RunsError> {
        let (before, limit) = (after(query.cursor.as_ref())?, limit(query.limit));
        // Behind all that was handed over to the writer.
        self.history().work(|_| Ok(())).await?;
        let found = self.history().read(move |connection| audit::list(connection, before, limit)).await?;
        let Page { items, next } = page(found, |(number, _)| *number);
        Ok(Page { items: items.into_iter().map(|(_, entry)| entry).collect(), next })
    }
}
