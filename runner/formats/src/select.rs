//! Fields that a document selects.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_types::spec::Name;

use crate::value;

/// Fields of samples, by their names in shards. Without a selection, all of them are fields under their own names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection(Option<BTreeMap<String, Arc<str>>>);

impl Selection {
    /// Selects fields, each with its names in shards, `NAME;NAME`. Without fields, all.
    pub(crate) fn new(fields: &BTreeMap<Name, String>) -> Self {
        let names: BTreeMap<String, Arc<str>> = fields
            .iter()
            .flat_map(|(field, names)| {
                let field: Arc<str> = Arc::from(field.as_str());
                names.split(';').map(move |name| (name.trim().to_owned(), field.clone()))
            })
            .collect();
        Self((!names.is_empty()).then_some(names))
    }

    /// Selects files of tar shards, whose names are in lower case.
    pub(crate) fn of_files(fields: &BTreeMap<Name, String>) -> Self {
        let Self(names) = Self::new(fields);
        Self(names.map(|names| names.into_iter().map(|(name, field)| (name.to_lowercase(), field)).collect()))
    }

    /// Name in samples of the field `name`; `None` if it is not selected.
    pub(crate) fn name_of(&self, name: &str) -> Option<Arc<str>> {
        match &self.0 {
            None => Some(Arc::from(name)),
            Some(names) => names.get(name).cloned(),
        }
    }

    /// Name in samples of the field in the file `KEY.FILE` of a tar shard; `None` if it is not selected.
    pub(crate) fn name_of_file(&self, file: &str) -> Option<Arc<str>> {
        let plain = value::plain_name(file);
        match &self.0 {
            None => Some(Arc::from(plain)),
            Some(names) => names.get(file).or_else(|| names.get(plain)).cloned(),
        }
    }

    /// Fields that are selected, each with its names in shards; none without a selection.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, &Arc<str>)> {
        self.0.iter().flatten().map(|(name, field)| (name.as_str(), field))
    }

    /// True if the document selects `name`; false without a selection.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.0.as_ref().is_some_and(|names| names.contains_key(name))
    }

    /// Names in shards of the first field that has none of these names, as the document has them; `None` if each field is there.
    pub(crate) fn missing(&self, there: impl Fn(&str) -> bool) -> Option<String> {
        let names = self.0.as_ref()?;
        let is_there = |field: &Arc<str>| names.iter().any(|(name, of)| of == field && there(name));
        names.iter().find(|(_, field)| !is_there(field)).map(|(name, _)| name.clone())
    }
}
