//! Fields that a document selects.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::value;

/// Names of fields in samples, by the names of files. Without a selection, all files become fields of the same name.
#[derive(Clone, Debug, Default)]
pub struct Selection(Option<BTreeMap<String, Arc<str>>>);

impl Selection {
    /// Selects files: fields, each with the names of its file, `FILE;FILE`. Without fields, all files.
    pub fn new<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let names: BTreeMap<String, Arc<str>> = fields
            .into_iter()
            .flat_map(|(field, files)| {
                let field: Arc<str> = Arc::from(field);
                files.split(';').map(move |file| (file.trim().to_lowercase(), field.clone()))
            })
            .collect();
        Self((!names.is_empty()).then_some(names))
    }

    /// Name in samples of the file's field; `None` if it is not selected.
    pub(super) fn name_of(&self, file: &str) -> Option<Arc<str>> {
        match &self.0 {
            None => Some(Arc::from(value::plain_name(file))),
            Some(names) => names.get(file).or_else(|| names.get(value::plain_name(file))).cloned(),
        }
    }
}
