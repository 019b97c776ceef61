//! The table of audit log entries.

use rusqlite::{Connection, Row, params};

use super::error::HistoryError;
use super::query::PageQuery;
use crate::wire::AuditEntry;

/// Adds an entry, and removes the oldest if there are more than `most`.
pub(crate) fn insert(connection: &Connection, entry: &AuditEntry, most: u32) -> Result<(), HistoryError> {
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
pub(crate) fn list(
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
    use super::super::schema::migrate;
    use super::*;

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
