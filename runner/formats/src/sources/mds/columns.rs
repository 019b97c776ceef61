//! Columns of the samples in a shard.
//!
//! A sample has the sizes of its columns of variable size, four bytes each, and then the contents of all columns.

use std::sync::Arc;

use bytes::Bytes;
use penstock_engine::item::{Sample, Value};
use penstock_types::data_set::DataField;

use super::encoding::{Encoding, images};
use crate::lists::offsets_field;
use crate::reason::Reason;
use crate::value::{key, little_endian, part, shortened};

#[derive(Debug, Default)]
pub(super) struct ShardColumns(pub(super) Vec<Column>);

#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: String,
    /// Encoding; `None` for a column that is not read.
    pub(super) encoding: Option<Encoding>,
    /// Size in bytes; `None` if it differs between samples.
    pub(super) size: Option<u64>,
    pub(super) field: Option<Arc<str>>,
    /// Field with the places of the images in the other one, if there are several.
    pub(super) offsets: Option<Arc<str>>,
    pub(super) is_key: bool,
}

impl ShardColumns {
    /// Fields of the samples, which all of them have.
    pub(super) fn fields(&self) -> Vec<DataField> {
        let fields = self.0.iter().flat_map(|column| {
            let field = column.field.clone().zip(column.encoding.as_ref());
            let field = field.map(|(name, encoding)| DataField {
                name,
                kind: encoding.kind(),
                optional: Some(false),
            });
            let offsets = field.as_ref().filter(|_| column.offsets.is_some()).map(offsets_field);
            field.into_iter().chain(offsets)
        });
        fields.collect()
    }

    /// Fields that are texts or blobs, with their meanings.
    pub(super) fn meanings(&self) -> impl Iterator<Item = (&Arc<str>, &'static str)> {
        self.0
            .iter()
            .filter_map(|column| Some((column.field.as_ref()?, column.encoding.as_ref()?.meaning()?)))
    }

    /// Adds the fields of a sample. The error is the end of a sentence about the sample.
    pub(super) fn add(&self, sample: &mut Sample, content: &Bytes) -> Result<(), Reason> {
        let variable = self.0.iter().filter(|column| column.size.is_none()).count();
        let (mut sizes, mut start) =
            (content.get(..4 * variable).unwrap_or_default().chunks_exact(4), 4 * variable);
        for column in &self.0 {
            let of_column =
                |reason: Reason| format!("has the column `{}`, which {reason}", shortened(&column.name));
            let truncated = || of_column("ends after the sample: the shard is damaged".into());
            let size = match column.size {
                Some(size) => Some(size),
                None => sizes.next().and_then(|size| Some(u32::from_le_bytes(size.try_into().ok()?).into())),
            };
            let end =
                size.and_then(|size| usize::try_from(size).ok()).and_then(|size| start.checked_add(size));
            let end = end.filter(|end| *end <= content.len()).ok_or_else(truncated)?;
            let place = start..end;
            start = end;
            let Some(encoding) = &column.encoding else { continue };
            if let (Encoding::Images { unused }, Some(field), Some(offsets)) =
                (encoding, &column.field, &column.offsets)
            {
                let (sizes, bytes) = images(part(content, place), *unused).map_err(of_column)?;
                let value =
                    crate::lists::offsets(sizes.chunks_exact(4).map(|size| little_endian(size) as usize));
                sample.set(field.clone(), Value::Blob(bytes));
                sample.set(offsets.clone(), value.map_err(of_column)?);
                continue;
            }
            let value = encoding.value(part(content, place)).map_err(of_column)?;
            if column.is_key {
                sample.key = key(&value).map_err(of_column)?;
            }
            if let Some(field) = &column.field {
                sample.set(field.clone(), value);
            }
        }
        match start == content.len() {
            true => Ok(()),
            false => {
                Err(format!("has {} bytes after its columns: the shard is damaged", content.len() - start)
                    .into())
            }
        }
    }
}
