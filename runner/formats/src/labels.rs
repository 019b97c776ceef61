//! Labels of listed objects: numbers of class folders, and the fields of a table.

mod folders;
mod table;

use std::sync::Arc;

use folders::Folders;
pub use folders::{Classes, NEW_CLASSES, SharedClasses};
use futures::FutureExt;
use penstock_engine::item::{Field, Origin, Sample, Value};
use penstock_engine::numbered::{Numbered, Open, ReadFault, ReadSamples};
use penstock_engine::share::Share;
use penstock_storage::{BoundedStore, MAX_INDEX_BYTES, PackedKeys, Wanted};
use penstock_types::data_set::{DataField, DataFields, FieldType};
use penstock_types::plan::{LABEL_FIELD, LEAST_SAMPLE_BYTES};
use penstock_types::resume::Hash;
use penstock_types::run::LabelsRecord;
pub use table::LabelTable;
use table::Rows;

/// Labels that listed samples get.
#[derive(Clone, Debug)]
pub struct Labelling {
    /// Adds the field [`LABEL_FIELD`]: the number of the first folder of the key below the folder of the prefix, among these classes. Those
    /// found are numbered as torchvision's `ImageFolder` with `allow_empty=True` does. Keys outside of such folders are left out.
    pub classes: Option<Classes>,
    /// Adds the fields of the record with the sample's key in this table.
    pub table: Option<LabelTable>,
}

/// Samples with labels, one for each wanted key, sorted by the bytes of the keys. All keys are listed first, and then the whole table
/// is read; what is kept of both may have `most_bytes`. `on_found` receives what was found, before the first sample is made.
pub fn labelled_samples(
    store: BoundedStore,
    wanted: Wanted,
    labelling: Labelling,
    on_found: impl FnOnce(LabelsRecord) + Send + 'static,
    most_bytes: u64,
) -> Open {
    async move {
        let most_bytes = most_bytes.min(MAX_INDEX_BYTES);
        // Keys are copied once if some of them are left out.
        let mut keys = wanted.list(most_bytes / 2, &store, |_| {}).await?;
        let mut record = LabelsRecord::default();
        let mut folders = None;
        if let Some(classes) = &labelling.classes {
            let (found, kept) = Folders::find(&store, &wanted, keys, classes, &mut record).await?;
            (folders, keys) = (Some(found), kept);
        }
        let mut rows = None;
        if let Some(table) = &labelling.table {
            let left = most_bytes - keys.bytes();
            let (found, kept) = table.join(keys, &wanted, folders.is_some(), left, &mut record).await?;
            (rows, keys) = (Some(found), kept);
        }
        keys.shrink();
        if let Some(folders) = &mut folders {
            folders.number(&keys);
        }
        on_found(record);
        let samples: Arc<dyn Numbered> = Arc::new(Labelled { keys, folders, rows });
        Ok(samples)
    }
    .boxed()
}

struct Labelled {
    keys: PackedKeys,
    folders: Option<Folders>,
    rows: Option<Rows>,
}

impl Labelled {
    async fn samples(&self, epoch: u32, indexes: &[u64], share: Share) -> Result<Vec<Sample>, ReadFault> {
        let mut samples = match &self.rows {
            Some(rows) => rows.read(epoch, indexes, share).await?.into_kept(),
            None => indexes.iter().map(|_| Sample::new("", Origin::default())).collect(),
        };
        let label: Arc<str> = Arc::from(LABEL_FIELD);
        for (sample, &index) in samples.iter_mut().zip(indexes) {
            sample.key =
                self.keys.get(index as usize).expect("samples are read by numbers below their count");
            sample.origin = Origin::at(epoch, index);
            if let Some(folders) = &self.folders {
                sample.fields.push(Field { name: label.clone(), value: Value::Int(folders.class_of(index)) });
            }
        }
        Ok(samples)
    }
}

impl Numbered for Labelled {
    fn count(&self) -> u64 {
        self.keys.len() as u64
    }

    fn digest(&self) -> Option<Hash> {
        let keys = self.keys.digest();
        let classes = self.folders.as_ref().map_or(keys, |folders| folders.digest(keys));
        Some(match self.rows.as_ref().and_then(|rows| rows.records.digest()) {
            Some(rows) => classes.with(String::from(rows).as_bytes()),
            None => classes,
        })
    }

    fn fields(&self) -> Option<DataFields> {
        // The whole table was read for the join.
        let of_rows = self.rows.as_ref().map(|rows| rows.records.fields());
        let mut fields = of_rows.unwrap_or_else(|| Some(DataFields::default()))?;
        if self.folders.is_some() {
            let (name, kind) = (LABEL_FIELD.into(), FieldType::Int);
            fields.fields.push(DataField { name, kind, optional: Some(false) });
        }
        Some(fields)
    }

    fn mean_bytes(&self) -> u64 {
        LEAST_SAMPLE_BYTES + self.rows.as_ref().map_or(0, |rows| rows.records.mean_bytes())
    }

    fn read(self: Arc<Self>, epoch: u32, indexes: Vec<u64>, share: Share) -> ReadSamples {
        async move { Ok(self.samples(epoch, &indexes, share).await?.into()) }.boxed()
    }

    fn kept_bytes(&self) -> u64 {
        let folders = self.folders.as_ref().map_or(0, Folders::bytes);
        self.keys.bytes() + folders + self.rows.as_ref().map_or(0, Rows::kept_bytes)
    }
}
