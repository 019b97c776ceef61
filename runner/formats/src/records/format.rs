//! Form of records, and of the samples made of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use penstock_engine::chunk::Outcome;
use penstock_engine::item::{Origin, Sample, Value};
use penstock_engine::lock::locked;
use penstock_engine::ports::SourceFault;
use penstock_types::data_set::{DataField, DataFields};
use penstock_types::plan::BYTES_FIELD;
use penstock_types::spec::{ColumnType, RecordForm, TableForm};

use super::RecordFault;
use super::charset::Charset;
use super::delimiter::is_separator_row;
use super::json::{Names, members};
use super::layout::{Readers, SAMPLE_KEY};
use super::part::{Part, Raw};
use super::rows::{Columns, RowParser, listed_names};
use crate::damage::Damage;

/// Form of the records in an object, and of the samples made of them.
#[derive(Clone, Debug)]
pub struct RecordFormat {
    pub(super) form: RecordForm,
    /// Types of members or columns, by name.
    pub(super) types: BTreeMap<String, ColumnType>,
    readers: Readers,
    /// Columns of the header read last. Most tables of a data set have the same: these are kept once, and their names are equal at a glance,
    /// since they are the same text in memory.
    last: Arc<Mutex<Arc<Columns>>>,
    /// Member or column that is the key of each sample; `None` for [`SAMPLE_KEY`], which a record may lack.
    key: Option<Arc<str>>,
    /// Set if a number alone does not identify a record.
    names_objects: bool,
    pub(super) damage: Damage,
}

/// Warning of lines with escapes such as `\ud83d` without their other half.
const HALVES: &str = "lines with half of a surrogate pair, which became U+FFFD";

/// Parser of records one after the other.
pub(super) struct Parser {
    rows: Option<RowParser>,
    names: Names,
}

impl RecordFormat {
    /// A JSON object on each line. Its members become fields: texts and numbers unchanged, booleans as the ints 0 and 1, arrays and
    /// objects as texts with their JSON. A member that is null is omitted. Members in `types` are of the type there.
    pub fn lines(types: BTreeMap<String, ColumnType>) -> Self {
        Self::of(RecordForm::Lines, types)
    }

    /// A table whose first row names the columns, in the dialect of Python's `csv` module: a value in quotes may contain
    /// delimiters, line ends and doubled quotes. Values are texts, except in the columns that `types` names.
    pub fn rows(form: impl Into<TableForm>, types: BTreeMap<String, ColumnType>) -> Self {
        Self::of(RecordForm::Rows(form.into()), types)
    }

    pub fn of(form: RecordForm, types: BTreeMap<String, ColumnType>) -> Self {
        let (readers, last, damage) = (Readers::default(), Arc::default(), Damage::default());
        Self { form, types, readers, last, key: None, names_objects: false, damage }
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

    #[must_use]
    pub fn with_damage(self, damage: Damage) -> Self {
        Self { damage, ..self }
    }

    pub(super) fn parser(&self) -> Parser {
        let rows = match self.form {
            RecordForm::Lines => None,
            RecordForm::Rows(form) => Some(RowParser::new(form, self.readers.take(form))),
        };
        Parser { rows, names: Names::default() }
    }

    /// Keeps what other parsers can use of this one.
    pub(super) fn keep(&self, parser: Parser) {
        if let Some(rows) = parser.rows {
            self.readers.keep(rows.reader);
        }
    }

    /// True for tables, whose columns are known from their headers.
    pub(super) fn has_columns(&self) -> bool {
        matches!(self.form, RecordForm::Rows(_))
    }

    /// Name of the member or column that is the key.
    pub(super) fn key_name(&self) -> &str {
        self.key.as_deref().unwrap_or(SAMPLE_KEY)
    }

    /// Columns that a header names; `None` if it is a first row that names the delimiter.
    pub(super) fn columns(
        &self,
        header: &[u8],
        charset: Charset,
        is_first: bool,
    ) -> Result<Option<Arc<Columns>>, RecordFault> {
        let mut parser = self.parser();
        let (RecordForm::Rows(form), Some(rows)) = (self.form, &mut parser.rows) else {
            return Ok(Some(Arc::default()));
        };
        if is_first && is_separator_row(header, form)? {
            return Ok(None);
        }
        let columns = rows.columns(header, charset, self.key.as_deref(), &self.types);
        self.keep(parser);
        let columns = columns?;
        let mut last = locked(&self.last);
        if **last != columns {
            *last = Arc::new(columns);
        }
        Ok(Some(last.clone()))
    }

    /// Fields of the rows of tables with these columns, united by name. Fails if `types` names a column that none of them has.
    pub(super) fn fields_of<'a>(
        &self,
        tables: impl Iterator<Item = &'a Columns> + Clone,
    ) -> Result<DataFields, RecordFault> {
        let mut fields: Vec<DataField> = Vec::new();
        for (place, columns) in tables.clone().enumerate() {
            let own: Vec<DataField> = columns.fields().collect();
            for known in &mut fields {
                if !own.iter().any(|field| field.name == known.name) {
                    known.optional = Some(true);
                }
            }
            for field in own {
                if !fields.iter().any(|known| known.name == field.name) {
                    let optional = if place == 0 { field.optional } else { Some(true) };
                    fields.push(DataField { optional, ..field });
                }
            }
        }
        let names: BTreeSet<&str> = tables.flat_map(Columns::names).collect();
        // Without tables, all of them are damaged.
        match self.types.keys().find(|name| !names.contains(name.as_str())) {
            Some(missing) if !names.is_empty() => {
                Err(RecordFault::NoColumn { name: missing.clone(), columns: listed_names(names.into_iter()) })
            }
            _ => Ok(DataFields::of(fields)),
        }
    }

    /// The sample of a record, with its outcome if the record is damaged.
    pub(super) fn sample(
        &self,
        parser: &mut Parser,
        Raw { origin, part, piece }: &Raw,
    ) -> Result<(Sample, Option<Outcome>), SourceFault> {
        match self.parsed(parser, part, &piece.text, piece.number, *origin) {
            Ok(sample) => Ok((sample, None)),
            Err(reason) => {
                let outcome = self.damage.sample(part.fault_of(piece.number, &reason))?;
                let mut sample = Sample::new(self.numbered(part, piece.number), *origin);
                sample.set(BYTES_FIELD, Value::Blob(piece.text.clone()));
                Ok((sample, Some(outcome)))
            }
        }
    }

    fn parsed(
        &self,
        parser: &mut Parser,
        part: &Part,
        text: &[u8],
        number: u64,
        origin: Origin,
    ) -> Result<Sample, RecordFault> {
        let (key, fields) = match (&part.columns, &mut parser.rows) {
            (Some(columns), Some(rows)) => rows.values(text, part.charset, columns)?,
            _ => {
                let mut repaired =
                    |_| self.damage.notes.warn(HALVES, &format!("{}:{number}", part.object.key));
                members(text, self.key_name(), &self.types, &mut parser.names, &mut repaired)?
            }
        };
        let key = match key {
            Some(key) => key,
            None if self.key.is_some() => {
                return Err(RecordFault::NoKey { name: self.key_name().to_owned() });
            }
            None => self.numbered(part, number),
        };
        Ok(Sample { key, origin, fields })
    }

    /// Key of a record that has none of its own.
    fn numbered(&self, part: &Part, number: u64) -> Arc<str> {
        match self.names_objects {
            true => format!("{}:{number}", part.object.key).into(),
            false => number.to_string().into(),
        }
    }
}
