//! The sources of the document.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::bounds::{Name, ObjectKey, TableCharacter};
use super::reading::{Links, OnDamage, Suffix, WhenMissing};
use super::table::{TableForm, TextEncoding, double_quote, is_double_quote};
use crate::traversal::{Pick, Shard, Stop, Traversal, TraversalSettings};

/// Source of the samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Source {
    /// Reads the keys of a store.
    List(ListSource),
    /// Reads the keys of an index file.
    Index(IndexSource),
    /// Counts numbers from 0.
    Range(RangeSource),
    /// Reads the lines of NDJSON objects.
    Records(RecordsSource),
    /// Reads the rows of tables whose values are separated by commas.
    Csv(TableSource),
    /// Reads the rows of tables whose values are separated by tabs.
    Tsv(TableSource),
    /// Reads the samples in tar shards.
    Tar(TarSource),
    /// Reads the rows of Parquet files.
    Parquet(ParquetSource),
    /// Reads the records in TFRecord files.
    Tfrecord(TfrecordSource),
    /// Reads the samples in shards of MosaicML Streaming.
    Mds(MdsSource),
    /// Mixes the samples of several sources.
    Mix(MixSource),
}

/// Declares a source: its own fields, then the order and range in which it is visited.
macro_rules! source {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// Permutes the samples, differently in every epoch.
            #[serde(default)]
            pub shuffle: bool,
            /// Part of the samples that this process reads; all when missing.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub shard: Option<Shard>,
            /// Number of passes over the source; `null` for an endless run.
            #[serde(default = "default_epochs")]
            pub epochs: Option<NonZeroU32>,
            /// Maximum number of samples in one epoch, over all shards together; all when missing.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub limit: Option<u64>,
        }

        impl $name {
            fn traversal(&self, seed: u64) -> TraversalSettings {
                TraversalSettings {
                    seed,
                    shuffle: self.shuffle,
                    window: None,
                    shard: self.shard,
                    limit: self.limit,
                    epochs: self.epochs,
                    first_epoch: 0,
                }
            }
        }
    };
}

source! {
    /// Produces one sample for every key of a store, sorted by bytes.
    ListSource {
        /// Store whose keys are listed.
        store: Name,
        /// Prefix of the keys to list; all keys when empty.
        #[serde(default)]
        prefix: String,
        /// Suffix of the keys to list, e.g. `.jpg`; all keys when empty. A list such as `[".jpg", ".png"]` is compared without case;
        /// `{"of": "std/image"}` takes the files that this module reads.
        #[serde(default)]
        suffix: Suffix,
        /// Origin of the field `label`, the number of a class: `folder` numbers the folders below that of `prefix`, sorted by bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        label: Option<LabelOrigin>,
        /// Names of the classes in the order of their numbers, with `"label": "folder"`; a folder that is none of them is a fault.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        classes: Option<Vec<String>>,
        /// Table whose fields are added to the samples with the same keys.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels: Option<LabelTable>,
        /// Takes keys in folders whose names begin with `.`, and in `__MACOSX`, behind `prefix`, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        #[schemars(extend("default" = false))]
        hidden: bool,
        /// Links in a folder that are followed: `all`, or `files` for those to files only.
        #[serde(default, skip_serializing_if = "Links::is_usual")]
        #[schemars(extend("default" = Links::default()))]
        links: Links,
        /// Handling of samples that lack a field of the data set, by field: `fail` (the default), `mask`, `drop`, `nan`, or
        /// `{"value": -1}`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        missing: BTreeMap<String, WhenMissing>,
    }
}

source! {
    /// Produces one sample for every key in an index, in the order of the index.
    IndexSource {
        /// Store that holds the objects.
        store: Name,
        /// Key of the index in that store: a JSON array of keys. When missing, the `index` in the configuration of the store.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<ObjectKey>,
    }
}

source! {
    /// Produces samples numbered from 0, without fields.
    RangeSource {
        /// Number of samples in one epoch.
        count: u64,
    }
}

source! {
    /// Produces one sample for every line of NDJSON objects: `key`, and the other members of the line as fields.
    RecordsSource {
        /// Store that holds the objects.
        store: Name,
        /// Key of the object in the store.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<ObjectKey>,
        /// Keys of several objects, e.g. `train-{000..127}.ndjson`; instead of `key`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shards: Option<ObjectKey>,
        /// Prefix of the keys of several objects, in the order of their bytes; instead of `key`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<String>,
        /// Suffix of the keys that start with `prefix`, or a list of them; `.ndjson` when missing, also with `.gz`
        /// or `.zst` behind it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        suffix: Option<Suffix>,
        /// Member that is the key of the sample. When missing, `key` or else the number of the line.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sample_key: Option<String>,
        /// Types of members by name, e.g. `{"score": "float"}`. The types of other members are learnt from the first 10,000 lines or
        /// 8 MiB; with a shuffle, from all lines.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        types: BTreeMap<String, ColumnType>,
        /// Takes keys in folders whose names begin with `.`, and in `__MACOSX`, behind `prefix`, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        #[schemars(extend("default" = false))]
        hidden: bool,
        /// Links in a folder that are followed: `all`, or `files` for those to files only.
        #[serde(default, skip_serializing_if = "Links::is_usual")]
        #[schemars(extend("default" = Links::default()))]
        links: Links,
        /// Handling of samples that lack a field of the data set, by field: `fail` (the default), `mask`, `drop`, `nan`, or
        /// `{"value": -1}`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        missing: BTreeMap<String, WhenMissing>,
        /// Handling of damaged, cut, empty and missing parts: `fail` or `skip`.
        #[serde(default, skip_serializing_if = "OnDamage::is_usual")]
        #[schemars(extend("default" = OnDamage::default()))]
        on_damage: OnDamage,
    }
}

source! {
    /// Produces one sample for every row of tables whose first row names the columns: `key`, and the other columns as fields.
    TableSource {
        /// Store that holds the tables.
        store: Name,
        /// Key of the table in the store.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<ObjectKey>,
        /// Keys of several tables, e.g. `train-{000..127}.csv`; instead of `key`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shards: Option<ObjectKey>,
        /// Prefix of the keys of several tables, in the order of their bytes; instead of `key`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<String>,
        /// Suffix of the keys that start with `prefix`, or a list of them; `.csv` or `.tsv` when missing, also with
        /// `.gz` or `.zst` behind it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        suffix: Option<Suffix>,
        /// Column that is the key of the sample. When missing, `key` or else the number of the row.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sample_key: Option<String>,
        /// Character between two values, e.g. `;` or a tab. When missing, a comma in `csv` and a tab in `tsv`, and a table that seems to have
        /// another one is refused.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        delimiter: Option<TableCharacter>,
        /// Character around values that contain delimiters or line ends, written twice within them; `null` for none.
        #[serde(default = "double_quote", skip_serializing_if = "is_double_quote")]
        #[schemars(extend("default" = "\""))]
        quote: Option<TableCharacter>,
        /// Encoding of the text.
        #[serde(default, skip_serializing_if = "TextEncoding::is_usual")]
        #[schemars(extend("default" = TextEncoding::default()))]
        encoding: TextEncoding,
        /// Types of columns by name, e.g. `{"label": "int"}`. Columns without a type are texts.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        types: BTreeMap<String, ColumnType>,
        /// Takes keys in folders whose names begin with `.`, and in `__MACOSX`, behind `prefix`, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        #[schemars(extend("default" = false))]
        hidden: bool,
        /// Links in a folder that are followed: `all`, or `files` for those to files only.
        #[serde(default, skip_serializing_if = "Links::is_usual")]
        #[schemars(extend("default" = Links::default()))]
        links: Links,
        /// Handling of samples that lack a field of the data set, by field: `fail` (the default), `mask`, `drop`, `nan`, or
        /// `{"value": -1}`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        missing: BTreeMap<String, WhenMissing>,
        /// Handling of damaged, cut, empty and missing parts: `fail` or `skip`.
        #[serde(default, skip_serializing_if = "OnDamage::is_usual")]
        #[schemars(extend("default" = OnDamage::default()))]
        on_damage: OnDamage,
    }
}

/// Type of the values in a column of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum ColumnType {
    /// Text, as written.
    #[default]
    Text,
    /// Whole number of 64 bits, also written as `3.0`; an empty value is no field.
    Int,
    /// Number; an empty value is no field.
    Float,
    /// `true`, `false`, `1` or `0`, in any case, as an int; an empty value is no field.
    Bool,
}

/// Origin of the field `label`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LabelOrigin {
    /// First folder of the key below the folder of the source's prefix. Keys outside of such folders are left out.
    Folder,
}

/// Table whose fields are added to listed samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabelTable {
    /// Store that holds the table; that of the source when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<Name>,
    /// Key of the table. It ends with `.csv`, `.tsv`, `.ndjson` or `.jsonl`.
    pub key: ObjectKey,
    /// Column or member that contains the keys of samples; `key` when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_key: Option<String>,
    /// Part of a sample's key that the table contains: `key` or `stem`.
    #[serde(default, rename = "match")]
    pub matches: KeyPart,
    /// Character between two values, e.g. `;` or a tab. When missing, a comma, or a tab if the key ends with `.tsv`; a table
    /// that seems to have another one is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<TableCharacter>,
    /// Character around values that contain delimiters or line ends, written twice within them; `null` for none.
    #[serde(default = "double_quote", skip_serializing_if = "is_double_quote")]
    #[schemars(extend("default" = "\""))]
    pub quote: Option<TableCharacter>,
    /// Encoding of the text.
    #[serde(default, skip_serializing_if = "TextEncoding::is_usual")]
    #[schemars(extend("default" = TextEncoding::default()))]
    pub encoding: TextEncoding,
    /// Types of columns by name; columns without a type are texts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<String, ColumnType>,
    /// Handling of listed keys that are not in the table: `fail` or `skip`.
    #[serde(default)]
    pub missing: Missing,
}

/// Part of a listed key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeyPart {
    /// The whole key.
    #[default]
    Key,
    /// The key without the `prefix` and the `suffix` of the source.
    Stem,
}

/// Handling of listed keys that are not in a table of labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Missing {
    /// Fails before the first sample.
    #[default]
    Fail,
    /// Makes no samples of these keys, and reports their number.
    Skip,
}

/// Form of the records in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordForm {
    /// A JSON object on each line.
    Lines,
    /// A table with a header.
    Rows(TableForm),
}

/// Objects with records that a document names.
#[derive(Clone, Copy, Debug)]
pub struct RecordObjects<'a> {
    /// Form of the records.
    pub form: RecordForm,
    /// Key of a single object.
    pub key: Option<&'a ObjectKey>,
    /// Pattern of keys.
    pub shards: Option<&'a ObjectKey>,
    /// Prefix of keys.
    pub prefix: Option<&'a str>,
    /// Suffix of keys that start with the prefix, if the document names one.
    pub suffix: Option<&'a Suffix>,
    /// Suffix of such keys if the document names none.
    pub usual_suffix: &'static str,
}

source! {
    /// Produces one sample for each group of neighbouring files with one key in tar shards, as WebDataset writes them: a file
    /// `KEY.NAME` is the field `NAME` of the sample `KEY`.
    TarSource {
        /// Store that holds the shards.
        store: Name,
        /// Keys of the shards, e.g. `train-{000..127}.tar`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shards: Option<ObjectKey>,
        /// Prefix of the keys of the shards, which end with `.tar`, `.tar.gz`, `.tgz` or `.tar.zst`; instead of `shards`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<String>,
        /// Key of an index in that store, made by `penstock index create --tar`; instead of `shards`. A shuffle needs an index.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<ObjectKey>,
        /// Fields of the samples, each with the names of its file, e.g. `{"bytes": "jpg;jpeg"}`. When missing, each file is a field
        /// with its own name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        fields: BTreeMap<Name, String>,
        /// Takes keys in folders whose names begin with `.`, and in `__MACOSX`, behind `prefix`, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        #[schemars(extend("default" = false))]
        hidden: bool,
        /// Links in a folder that are followed: `all`, or `files` for those to files only.
        #[serde(default, skip_serializing_if = "Links::is_usual")]
        #[schemars(extend("default" = Links::default()))]
        links: Links,
        /// Handling of samples that lack a field of the data set, by field: `fail` (the default), `mask`, `drop`, `nan`, or
        /// `{"value": -1}`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        missing: BTreeMap<String, WhenMissing>,
        /// Handling of damaged, cut, empty and missing parts: `fail` or `skip`.
        #[serde(default, skip_serializing_if = "OnDamage::is_usual")]
        #[schemars(extend("default" = OnDamage::default()))]
        on_damage: OnDamage,
        /// Number of shards whose samples a shuffle mixes at a time; all when missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<NonZeroU32>,
    }
}

source! {
    /// Produces one sample for each row of Parquet files; each column is a field.
    ParquetSource {
        /// Store that holds the files.
        store: Name,
        /// Keys of the files, e.g. `train-{00000..00041}.parquet`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shards: Option<ObjectKey>,
        /// Prefix of the keys of the files, which end with `.parquet`; instead of `shards`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<String>,
        /// Columns that become fields; all when `fields` is missing, too. A column in a struct is named with it, e.g. `image.path`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        columns: Vec<String>,
        /// Further fields, each with the name of its column, e.g. `{"bytes": "image"}`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        fields: BTreeMap<Name, String>,
        /// Column whose values become the keys of the samples, instead of a field. When missing, keys are `FILE#ROW`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sample_key: Option<String>,
        /// Comparisons that a row meets, all of them; other rows are no samples.
        #[serde(default, rename = "where", skip_serializing_if = "Vec::is_empty")]
        filter: Vec<Comparison>,
        /// Takes keys in folders whose names begin with `.`, and in `__MACOSX`, behind `prefix`, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        #[schemars(extend("default" = false))]
        hidden: bool,
        /// Links in a folder that are followed: `all`, or `files` for those to files only.
        #[serde(default, skip_serializing_if = "Links::is_usual")]
        #[schemars(extend("default" = Links::default()))]
        links: Links,
        /// Handling of samples that lack a field of the data set, by field: `fail` (the default), `mask`, `drop`, `nan`, or
        /// `{"value": -1}`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        missing: BTreeMap<String, WhenMissing>,
        /// Handling of damaged, cut, empty and missing parts: `fail` or `skip`.
        #[serde(default, skip_serializing_if = "OnDamage::is_usual")]
        #[schemars(extend("default" = OnDamage::default()))]
        on_damage: OnDamage,
        /// Number of row groups whose rows a shuffle mixes at a time; all when missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<NonZeroU32>,
    }
}

source! {
    /// Produces one sample for each record in TFRecord files. Checksums are verified on every read.
    TfrecordSource {
        /// Store that holds the files.
        store: Name,
        /// Keys of the files, e.g. `train-{00000..01023}-of-01024`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shards: Option<ObjectKey>,
        /// Prefix of the keys of the files, which have names such as `a.tfrecord` or `a.tfrecord-00000-of-00128`; instead of `shards`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<String>,
        /// Key of an index in that store, made by `penstock index create --tfrecord`; instead of `shards`. A shuffle needs an index.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<ObjectKey>,
        /// Content of the records.
        #[serde(default)]
        decode: RecordDecoding,
        /// Fields of the samples, each with the name of its feature, e.g. `{"bytes": "image/encoded"}`. When missing, each feature is
        /// a field with its own name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        fields: BTreeMap<Name, String>,
        /// Features of bytes that are texts in UTF-8; the others are blobs.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        texts: Vec<String>,
        /// Numeric features that have one value in each record.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        scalars: Vec<String>,
        /// Features whose values are lists, also of one or no element. A list of blobs becomes two fields: their bytes in sequence, and
        /// their places in `NAME.offsets`. A list of texts, which `texts` names, too, becomes a text in JSON. A feature of numbers that
        /// neither `scalars` nor `lists` names is one value if each record from which the types are learnt has exactly one, and
        /// otherwise a list.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lists: Vec<String>,
        /// Feature that is the key of the sample. When missing, the key is that of the file, `#`, and the number of the record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sample_key: Option<String>,
        /// Takes keys in folders whose names begin with `.`, and in `__MACOSX`, behind `prefix`, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        #[schemars(extend("default" = false))]
        hidden: bool,
        /// Links in a folder that are followed: `all`, or `files` for those to files only.
        #[serde(default, skip_serializing_if = "Links::is_usual")]
        #[schemars(extend("default" = Links::default()))]
        links: Links,
        /// Handling of samples that lack a field of the data set, by field: `fail` (the default), `mask`, `drop`, `nan`, or
        /// `{"value": -1}`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        missing: BTreeMap<String, WhenMissing>,
        /// Handling of damaged, cut, empty and missing parts: `fail` or `skip`.
        #[serde(default, skip_serializing_if = "OnDamage::is_usual")]
        #[schemars(extend("default" = OnDamage::default()))]
        on_damage: OnDamage,
        /// Number of files whose samples a shuffle mixes at a time; all when missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<NonZeroU32>,
    }
}

/// Comparison of a column's values with a value. A null meets no comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// Name of the column.
    pub column: String,
    /// Relation of the column's value to `value`.
    pub op: Operator,
    /// A text for a column of texts, else a number or a truth value.
    pub value: ComparedValue,
}

/// Relation of two values. Texts are compared by their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// Is equal.
    #[serde(rename = "==")]
    Equal,
    /// Is not equal.
    #[serde(rename = "!=")]
    NotEqual,
    /// Is less.
    #[serde(rename = "<")]
    Less,
    /// Is less or equal.
    #[serde(rename = "<=")]
    AtMost,
    /// Is greater.
    #[serde(rename = ">")]
    Greater,
    /// Is greater or equal.
    #[serde(rename = ">=")]
    AtLeast,
}

/// A value that the values of a column are compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a number, a text, `true` or `false`")]
pub enum ComparedValue {
    /// A truth value; true equals 1.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Another number.
    Real(f64),
    /// A text.
    Text(String),
}

impl Operator {
    /// True if values in this order have the relation.
    pub fn accepts(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::AtMost => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::AtLeast => order.is_ge(),
        }
    }
}

/// Content of the records in TFRecord files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RecordDecoding {
    /// `tf.train.Example`: features become fields.
    #[default]
    Example,
    /// Bytes: a record becomes the field `bytes`.
    Bytes,
}

source! {
    /// Produces one sample for each sample in the shards of MosaicML Streaming that an `index.json` describes.
    MdsSource {
        /// Store that holds the shards.
        store: Name,
        /// Folder of the `index.json` in the store; the whole store when empty.
        #[serde(default)]
        prefix: String,
        /// Fields of the samples, each with the name of its column, e.g. `{"bytes": "image"}`. When missing, each column is a field
        /// with its own name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        fields: BTreeMap<Name, String>,
        /// Column that is the key of the sample. When missing, the key is that of the shard, `#`, and the number of the sample there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sample_key: Option<String>,
        /// Handling of samples that lack a field of the data set, by field: `fail` (the default), `mask`, `drop`, `nan`, or
        /// `{"value": -1}`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        missing: BTreeMap<String, WhenMissing>,
        /// Handling of damaged, cut, empty and missing parts: `fail` or `skip`.
        #[serde(default, skip_serializing_if = "OnDamage::is_usual")]
        #[schemars(extend("default" = OnDamage::default()))]
        on_damage: OnDamage,
        /// Number of shards whose samples a shuffle mixes at a time; all when missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<NonZeroU32>,
    }
}

/// Mixes the samples of several sources by their weights. In each block of samples, every source has exactly its share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MixSource {
    /// Sources by name. `shuffle` and `limit` of each apply within it; the mixture has the `shard` and the `epochs`.
    pub sources: BTreeMap<Name, MixPart>,
    /// End of an epoch: `first` when a source ends, `all` when all have ended, `cycle` when each was read at least once, or
    /// `{"samples": N}`.
    #[serde(default)]
    pub stop: Stop,
    /// Order within a block: `even` or `random`.
    #[serde(default)]
    pub pick: Pick,
    /// Part of the samples that this process reads; all when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// Number of epochs; `null` for an endless run.
    #[serde(default = "default_epochs")]
    pub epochs: Option<NonZeroU32>,
    /// Maximum number of samples in one epoch, over all shards together; all when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// A source of a mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MixPart {
    /// Source of the samples; any but `mix`.
    pub source: Source,
    /// Share of the source in relation to the other weights; with 0, the source is never read.
    #[serde(default = "default_weight")]
    pub weight: u32,
}

impl Source {
    /// Kind of the source, as written in the document.
    pub fn kind(&self) -> &'static str {
        self.into()
    }

    /// Store of the source's objects; `None` if there is none, or if a mixture has several.
    pub fn store(&self) -> Option<&Name> {
        let Self::Mix(mix) = self else { return self.stores().first().copied() };
        let mut stores = mix.sources.values().map(|part| part.source.store());
        let first = stores.next()??;
        stores.all(|store| store == Some(first)).then_some(first)
    }

    /// Stores that the source reads from, that of its objects first.
    pub fn stores(&self) -> Vec<&Name> {
        match self {
            Self::List(source) => std::iter::once(&source.store)
                .chain(source.labels.iter().filter_map(|labels| labels.store.as_ref()))
                .collect(),
            Self::Index(source) => vec![&source.store],
            Self::Records(source) => vec![&source.store],
            Self::Csv(source) | Self::Tsv(source) => vec![&source.store],
            Self::Tar(source) => vec![&source.store],
            Self::Parquet(source) => vec![&source.store],
            Self::Tfrecord(source) => vec![&source.store],
            Self::Mds(source) => vec![&source.store],
            Self::Range(_) => Vec::new(),
            Self::Mix(mix) => mix.sources.values().flat_map(|part| part.source.stores()).collect(),
        }
    }

    /// Objects of a source that reads records; `None` for other sources.
    pub fn records(&self) -> Option<RecordObjects<'_>> {
        Some(match self {
            Self::Records(RecordsSource { key, shards, prefix, suffix, .. }) => RecordObjects {
                form: RecordForm::Lines,
                key: key.as_ref(),
                shards: shards.as_ref(),
                prefix: prefix.as_deref(),
                suffix: suffix.as_ref(),
                usual_suffix: ".ndjson",
            },
            Self::Csv(table) => table.objects(b',', ".csv"),
            Self::Tsv(table) => table.objects(b'\t', ".tsv"),
            _ => return None,
        })
    }

    /// Number of samples in one epoch with this traversal; `None` if only reading the source reveals it.
    pub(crate) fn samples(&self, traversal: TraversalSettings) -> Option<u64> {
        match self {
            Self::Range(range) => Traversal::new(range.count, traversal).ok().map(|all| all.len_per_epoch()),
            _ => None,
        }
    }

    /// Handling of samples that lack a field, by field.
    pub fn missing(&self) -> Option<&BTreeMap<String, WhenMissing>> {
        Some(match self {
            Self::List(source) => &source.missing,
            Self::Records(source) => &source.missing,
            Self::Csv(source) | Self::Tsv(source) => &source.missing,
            Self::Tar(source) => &source.missing,
            Self::Parquet(source) => &source.missing,
            Self::Tfrecord(source) => &source.missing,
            Self::Mds(source) => &source.missing,
            Self::Index(_) | Self::Range(_) | Self::Mix(_) => return None,
        })
    }

    /// Settings of the listing of its objects: true if keys in hidden folders are taken, and the links that are followed.
    pub fn listing(&self) -> (bool, Links) {
        match self {
            Self::List(source) => (source.hidden, source.links),
            Self::Records(source) => (source.hidden, source.links),
            Self::Csv(source) | Self::Tsv(source) => (source.hidden, source.links),
            Self::Tar(source) => (source.hidden, source.links),
            Self::Parquet(source) => (source.hidden, source.links),
            Self::Tfrecord(source) => (source.hidden, source.links),
            Self::Index(_) | Self::Range(_) | Self::Mds(_) | Self::Mix(_) => (false, Links::All),
        }
    }

    /// Handling of damaged data.
    pub fn on_damage(&self) -> OnDamage {
        match self {
            Self::Records(source) => source.on_damage,
            Self::Csv(source) | Self::Tsv(source) => source.on_damage,
            Self::Tar(source) => source.on_damage,
            Self::Parquet(source) => source.on_damage,
            Self::Tfrecord(source) => source.on_damage,
            Self::Mds(source) => source.on_damage,
            Self::List(_) | Self::Index(_) | Self::Range(_) | Self::Mix(_) => OnDamage::Fail,
        }
    }

    /// Settings of the traversal for this `seed`.
    pub fn traversal(&self, seed: u64) -> TraversalSettings {
        match self {
            Self::List(source) => source.traversal(seed),
            Self::Index(source) => source.traversal(seed),
            Self::Range(source) => source.traversal(seed),
            Self::Records(source) => source.traversal(seed),
            Self::Csv(source) | Self::Tsv(source) => source.traversal(seed),
            Self::Tar(source) => TraversalSettings { window: source.window, ..source.traversal(seed) },
            Self::Parquet(source) => TraversalSettings { window: source.window, ..source.traversal(seed) },
            Self::Tfrecord(source) => TraversalSettings { window: source.window, ..source.traversal(seed) },
            Self::Mds(source) => TraversalSettings { window: source.window, ..source.traversal(seed) },
            Self::Mix(MixSource { shard, epochs, limit, .. }) => TraversalSettings {
                seed,
                shard: *shard,
                epochs: *epochs,
                limit: *limit,
                ..TraversalSettings::IN_ORDER
            },
        }
    }
}

impl TableSource {
    fn objects(&self, delimiter: u8, usual_suffix: &'static str) -> RecordObjects<'_> {
        let form = TableForm::new(delimiter, self.delimiter.as_ref(), self.quote.as_ref(), self.encoding);
        RecordObjects {
            form: RecordForm::Rows(form),
            key: self.key.as_ref(),
            shards: self.shards.as_ref(),
            prefix: self.prefix.as_deref(),
            suffix: self.suffix.as_ref(),
            usual_suffix,
        }
    }
}

impl ColumnType {
    /// Name in the document.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl LabelTable {
    /// Form of the table, which the end of its key names; `None` if it names no form.
    pub fn form(&self) -> Option<RecordForm> {
        let rows = |delimiter| {
            let (own, quote) = (self.delimiter.as_ref(), self.quote.as_ref());
            RecordForm::Rows(TableForm::new(delimiter, own, quote, self.encoding))
        };
        let forms = [
            (".csv", rows(b',')),
            (".tsv", rows(b'\t')),
            (".ndjson", RecordForm::Lines),
            (".jsonl", RecordForm::Lines),
        ];
        let key = self.key.as_str();
        forms.into_iter().find(|(end, _)| key.ends_with(end)).map(|(_, form)| form)
    }
}

impl RecordObjects<'_> {
    /// Suffix of the keys that start with the prefix.
    pub fn suffix(&self) -> Suffix {
        let usual = || ["", ".gz", ".zst"].map(|end| format!("{}{end}", self.usual_suffix)).to_vec();
        self.suffix.cloned().unwrap_or_else(|| Suffix::Several(usual()))
    }
}

fn default_weight() -> u32 {
    1
}

fn default_epochs() -> Option<NonZeroU32> {
    Some(NonZeroU32::MIN)
}
