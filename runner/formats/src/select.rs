//! Fields that a document selects.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_types::spec::Name;

use crate::value;

/// Fields of samples, by their names in shards. Without a selection, all of them are fields under their own names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    names: Option<BTreeMap<String, Arc<str>>>,
    /// Field that is the key of a sample. It is no other field then, unless the document selects it.
    pub(crate) key: Option<String>,
}

impl Selection {
    /// Selects fields, each with its names in shards, `NAME;NAME`. Without fields, all.
    pub(crate) fn new(fields: &BTreeMap<Name, String>, key: Option<String>) -> Self {
        let names: BTreeMap<String, Arc<str>> = fields
            .iter()
            .flat_map(|(field, names)| {
                let field: Arc<str> = Arc::from(field.as_str());
                names.split(';').map(move |name| (name.trim().to_owned(), field.clone()))
            })
            .collect();
        Self { names: (!names.is_empty()).then_some(names), key }
    }

    /// Selects files of tar shards, whose names are in lower case.
    pub(crate) fn of_files(fields: &BTreeMap<Name, String>) -> Self {
        let Self { names, key } = Self::new(fields, None);
        let lower = |(name, field): (String, _)| (name.to_lowercase(), field);
        Self { names: names.map(|names| names.into_iter().map(lower).collect()), key }
    }

    /// Name in samples of the field `name`; `None` if it is not selected.
    pub(crate) fn name_of(&self, name: &str) -> Option<Arc<str>> {
        match &self.names {
            None => (!self.is_key(name)).then(|| Arc::from(name)),
            Some(names) => names.get(name).cloned(),
        }
    }

    /// Name in samples of the field in the file `KEY.FILE` of a tar shard; `None` if it is not selected.
    pub(crate) fn name_of_file(&self, file: &str) -> Option<Arc<str>> {
        let plain = value::plain_name(file);
        match &self.names {
            None => Some(Arc::from(plain)),
            Some(names) => names.get(file).or_else(|| names.get(plain)).cloned(),
        }
    }

    /// Fields that are selected, each with its names in shards; none without a selection.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, &Arc<str>)> {
        self.names.iter().flatten().map(|(name, field)| (name.as_str(), field))
    }

    pub(crate) fn is_key(&self, name: &str) -> bool {
        self.key.as_deref() == Some(name)
    }

    /// The key, or else one of the names in shards of the first field that has none of them, if it is not `there`.
    pub(crate) fn missing(&self, there: impl Fn(&str) -> bool) -> Option<String> {
        if let Some(key) = self.key.as_ref().filter(|key| !there(key)) {
            return Some(key.clone());
        }
        let names = self.names.as_ref()?;
        let is_there = |field: &Arc<str>| names.iter().any(|(name, of)| of == field && there(name));
        names.iter().find(|(_, field)| !is_there(field)).map(|(name, _)| name.clone())
    }
}
