//! Form of records, and of the samples made of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_engine::item::{Origin, Sample};
use penstock_types::spec::ColumnType;

use super::RecordFault;
use super::json::members;
use super::layout::{Layout, SAMPLE_KEY};
use super::part::Part;
use super::rows::{Columns, RowParser};
use super::split::Piece;

/// Form of the records in an object, and of the samples made of them.
#[derive(Clone, Debug)]
pub struct RecordFormat {
    pub(super) layout: Layout,
    /// Member or column that is the key of each sample; `None` for [`SAMPLE_KEY`], which a record may lack.
    key: Option<Arc<str>>,
    /// Set if a number alone does not identify a record.
    names_objects: bool,
}

impl RecordFormat {
    /// A JSON object on each line. Its members become fields: texts and numbers unchanged, booleans as the ints 0 and 1, arrays and
    /// objects as texts with their JSON. A member that is null is omitted.
    pub fn lines() -> Self {
        Self { layout: Layout::Lines, key: None, names_objects: false }
    }

    /// A table whose first row names the columns, in the dialect of Python's `csv` module: a value in double quotes may contain
    /// delimiters, line ends and doubled quotes. Values are texts, except in the columns that `types` names.
    pub fn rows(delimiter: u8, types: BTreeMap<String, ColumnType>) -> Self {
        Self { layout: Layout::Rows { delimiter, types }, key: None, names_objects: false }
    }

    /// The same with the member or column `key` as the key of each sample, which every record then has. Without a name, it is `key`,
    /// and a record that lacks it has its number as the key.
    #[must_use]
    pub fn with_key(self, key: Option<&str>) -> Self {
        Self { key: key.map(Arc::from), ..self }
    }

    /// The same for records of several objects: the key of a record without one is `OBJECT:NUMBER`.
    #[must_use]
    pub fn of_several(self) -> Self {
        Self { names_objects: true, ..self }
    }

    /// Columns that a header names.
    pub(super) fn columns(&self, header: &[u8]) -> Result<Arc<Columns>, RecordFault> {
        let Layout::Rows { types, .. } = &self.layout else { return Ok(Arc::default()) };
        RowParser::new(&self.layout).columns(header, self.key.as_deref(), types).map(Arc::new)
    }

    pub(super) fn sample(
        &self,
        part: &Part,
        rows: &mut RowParser,
        piece: &Piece,
        origin: Origin,
    ) -> Result<Sample, RecordFault> {
        let name = self.key.as_deref().unwrap_or(SAMPLE_KEY);
        let (key, fields) = match &part.columns {
            None => members(&piece.text, name)?,
            Some(columns) => rows.values(&piece.text, columns)?,
        };
        let key = match key {
            Some(key) => key,
            None if self.key.is_some() => return Err(RecordFault::NoKey { name: name.to_owned() }),
            None if self.names_objects => format!("{}:{}", part.object.key, piece.number).into(),
            None => piece.number.to_string().into(),
        };
        Ok(Sample { key, origin, fields })
    }
}
