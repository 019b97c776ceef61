//! Query helpers that the tables share.

use rusqlite::types::{FromSql, Value as Sql};
use rusqlite::{Connection, OptionalExtension, Params, Row, params_from_iter};
use serde_json::Value;

use super::error::{HistoryError, undamaged};

/// Returns the first column of the first row, if there is one.
pub(crate) fn first<T: FromSql>(
    connection: &Connection,
    query: &str,
    params: impl Params,
) -> rusqlite::Result<Option<T>> {
    connection.prepare_cached(query)?.query_row(params, |row| row.get(0)).optional()
}

/// Returns the first column of all rows.
pub(crate) fn all<T: FromSql>(
    connection: &Connection,
    query: &str,
    params: impl Params,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare_cached(query)?.query_map(params, |row| row.get(0))?.collect()
}

pub(crate) fn count(connection: &Connection, query: &str, params: impl Params) -> Result<u64, HistoryError> {
    let count: i64 = connection.prepare_cached(query)?.query_row(params, |row| row.get(0))?;
    Ok(count as u64)
}

/// Creates a `LIKE` pattern that matches a text at any position; wildcards in the text are escaped.
pub(crate) fn like(text: &str) -> String {
    format!("%{}%", text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_"))
}

/// Value by which rows that lack the figure of a column are sorted.
pub(crate) const NO_FIGURE: f64 = -1.0;

/// Returns a stored text or number as JSON; `null` for other values.
pub(crate) fn json_of(value: Sql) -> Value {
    match value {
        Sql::Integer(number) => number.into(),
        Sql::Real(number) => number.into(),
        Sql::Text(text) => text.into(),
        Sql::Null | Sql::Blob(_) => Value::Null,
    }
}

/// Query for a page of the rows that satisfy all conditions.
#[derive(Default)]
pub(crate) struct PageQuery {
    conditions: Vec<String>,
    values: Vec<Sql>,
}

impl PageQuery {
    /// Adds a condition with a placeholder `?`, unless the value is `None`.
    pub(crate) fn with(mut self, condition: &str, value: Option<impl Into<Sql>>) -> Self {
        if let Some(value) = value {
            let place = self.value(value);
            self.conditions.push(condition.replace('?', &place));
        }
        self
    }

    /// Restricts the page to rows behind the row with the values `after` of `column` and of the unique `key`; returns the order of
    /// the rows, too.
    pub(crate) fn sorted(
        mut self,
        (column, key): (&str, &str),
        is_descending: bool,
        after: Option<(Value, Sql)>,
    ) -> (Self, String) {
        let (order, than) = if is_descending { ("DESC", "<") } else { ("ASC", ">") };
        if let Some((last, last_key)) = after {
            let last = match last {
                Value::String(text) => Sql::Text(text),
                other => Sql::Real(other.as_f64().unwrap_or(NO_FIGURE)),
            };
            let places = [self.value(last), self.value(last_key)].join(", ");
            self.conditions.push(format!("({column}, {key}) {than} ({places})"));
        }
        (self, format!("{column} {order}, {key} {order}"))
    }

    /// Reads at most `limit` rows and leaves out damaged ones; also returns true if more rows follow. `columns` is the text after
    /// `SELECT`, e.g. `name FROM modules`; `order` is the text after `ORDER BY`, e.g. `name`.
    pub(crate) fn read<T>(
        mut self,
        connection: &Connection,
        (what, columns, order): (&'static str, &str, &str),
        limit: u32,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<Result<T, HistoryError>>,
    ) -> Result<(Vec<T>, bool), HistoryError> {
        let most = self.value(i64::from(limit) + 1);
        self.conditions.push("1".to_owned());
        let conditions = self.conditions.join(" AND ");
        let query = format!("SELECT {columns} WHERE {conditions} ORDER BY {order} LIMIT {most}");
        let mut statement = connection.prepare_cached(&query)?;
        let (mut found, mut count) = (Vec::new(), 0);
        for row in statement.query_map(params_from_iter(self.values), read)? {
            count += 1;
            if count <= limit {
                found.extend(undamaged(what, row)?);
            }
        }
        Ok((found, count > limit))
    }

    fn value(&mut self, value: impl Into<Sql>) -> String {
        self.values.push(value.into());
        format!("?{}", self.values.len())
    }
}
