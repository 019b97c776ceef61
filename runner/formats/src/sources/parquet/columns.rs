//! Columns of a file, and the fields of samples that they become.

use std::collections::BTreeSet;
use std::sync::Arc;

use parquet::basic::{Repetition, Type as Physical};
use parquet::data_type::ByteArray;
use parquet::schema::types::{ColumnDescPtr, ColumnDescriptor, ColumnPath, Type};
use penstock_engine::item::Dtype;
use penstock_types::data_set::{DataField, DataFields, FieldType};
use penstock_types::spec::{ParquetSource, WhenMissing};

use super::fault::{FileFault, escaped};
use super::schema::{Annotation, Form, Node, Unit};
use crate::lists::{check_name, offsets_field, offsets_name};
use crate::value::listed;

const MAX_COLUMNS: usize = 100_000;

/// Maximum length of the name of a column with the names of the structs around it, in bytes.
const MAX_NAME: usize = 1024;

#[derive(Clone, Debug)]
pub(super) struct Leaf {
    /// Names of the column and of the structs around it, joined by dots.
    pub(super) name: Arc<str>,
    /// Position among all columns of the file.
    pub(super) column: usize,
    pub(super) descr: ColumnDescPtr,
    pub(super) kind: Kind,
    pub(super) annotation: Annotation,
    /// Definition level from which on each of the lists around a value has an element, from the outermost list on.
    pub(super) lists: Vec<i16>,
    /// Set if NaN stands for nulls in lists.
    pub(super) has_nan: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bool,
    /// Whole numbers; as elements of lists they have this type.
    Int {
        dtype: Dtype,
        is_unsigned: bool,
    },
    /// Times of old files, in 96 bits; they become nanoseconds.
    Int96,
    Float16,
    Float32,
    Float64,
    Decimal {
        scale: i32,
    },
    Text,
    Blob,
    /// Values that cannot become a field, with the reason.
    None(&'static str),
}

#[derive(Clone, Debug)]
pub(super) struct FieldPlan {
    pub(super) name: Arc<str>,
    /// Position of the column in [`Layout::leaves`].
    pub(super) leaf: usize,
    /// Position of the column with the path of a file, if the bytes may be missing because they are in that file.
    pub(super) path: Option<usize>,
    /// Field with the places of the blobs in this one, if the values are lists of blobs.
    pub(super) offsets: Option<Arc<str>>,
}

/// Columns that a document names and a file does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lacking {
    pub(super) columns: BTreeSet<String>,
    /// Names of some of the columns that the file has.
    pub(super) known: String,
}

/// Columns to read of each row group of a file.
#[derive(Debug)]
pub(super) struct Layout {
    /// Columns that are needed, in the order of the file.
    pub(super) leaves: Vec<Leaf>,
    pub(super) fields: Vec<FieldPlan>,
    /// Position in `leaves` of the column with the keys.
    pub(super) key: Option<usize>,
    /// Position in `leaves` of the column of each comparison; `None` if the file does not have it.
    pub(super) filter: Vec<Option<usize>>,
    /// Number of all columns of the file.
    pub(super) columns: usize,
    pub(super) lacking: Lacking,
}

#[derive(Default)]
struct Tree {
    leaves: Vec<Leaf>,
    /// Columns that become fields, if the document names none.
    fields: Vec<FieldPlan>,
}

#[derive(Clone, Copy)]
struct Around<'a> {
    /// Name of the node, with the names of the structs around it.
    name: &'a str,
    /// Definition level around the node.
    level: i16,
    /// Definition levels of the lists around the node.
    lists: &'a [i16],
}

impl Layout {
    pub(super) fn new(schema: &[Node], source: &ParquetSource) -> Result<Self, FileFault> {
        let mut tree = Tree::of(schema)?;
        let find = |name: &String| tree.find(name);
        let key = source.sample_key.as_ref().map(find).transpose()?.map(|field| field.leaf);
        // Other files of the data set may have a column that this one does not have.
        let mut lacking = Lacking { known: tree.known(), ..Lacking::default() };
        let mut found = |column: &String| {
            let found = find(column).ok();
            if found.is_none() {
                lacking.columns.insert(column.clone());
            }
            found.filter(|field| !tree.leaves[field.leaf].is_null())
        };
        let mut fields: Vec<FieldPlan> = match source.columns.is_empty() && source.fields.is_empty() {
            true => {
                let is_field =
                    |field: &&FieldPlan| Some(field.leaf) != key && !tree.leaves[field.leaf].is_null();
                tree.fields.iter().filter(is_field).cloned().collect()
            }
            false => {
                let columns = source.columns.iter().map(|column| (column.as_str(), column));
                let named = columns.chain(source.fields.iter().map(|(name, column)| (name.as_str(), column)));
                let field = |(name, column)| Some(FieldPlan { name: Arc::from(name), ..found(column)? });
                named.filter_map(field).collect()
            }
        };
        let compared = source.filter.iter().map(|comparison| found(&comparison.column));
        let filter: Vec<Option<usize>> = compared.map(|field| Some(field?.leaf)).collect();
        tree.check_fields(&mut fields)?;
        if let Some(key) = key {
            tree.leaves[key].check_key()?;
        }
        for field in &fields {
            tree.leaves[field.leaf].has_nan = source.missing.get(&*field.name) == Some(&WhenMissing::Nan);
        }
        let all = Self { columns: tree.leaves.len(), leaves: tree.leaves, fields, key, filter, lacking };
        Ok(all.without_unneeded())
    }

    /// The same with the needed columns alone.
    fn without_unneeded(self) -> Self {
        let Self { leaves, fields, key, filter, .. } = &self;
        let columns = fields.iter().flat_map(|field| [Some(field.leaf), field.path]).flatten();
        let needed: BTreeSet<usize> = columns.chain(*key).chain(filter.iter().copied().flatten()).collect();
        let needed: Vec<usize> = needed.into_iter().collect();
        let place = |leaf: usize| needed.partition_point(|needed| *needed < leaf);
        let placed = |field: &FieldPlan| FieldPlan {
            leaf: place(field.leaf),
            path: field.path.map(place),
            ..field.clone()
        };
        Self {
            leaves: needed.iter().map(|leaf| leaves[*leaf].clone()).collect(),
            fields: fields.iter().map(placed).collect(),
            key: key.map(place),
            filter: filter.iter().map(|leaf| leaf.map(place)).collect(),
            ..self
        }
    }

    /// Fields of the samples of the file. `nulls` are the numbers of nulls in the columns, as far as they are known.
    pub(super) fn fields(&self, nulls: &[Option<u64>]) -> DataFields {
        let field = |field: &FieldPlan| {
            let leaf = &self.leaves[field.leaf];
            let made = DataField {
                name: field.name.clone(),
                kind: leaf.kind.field_type(leaf.lists.len())?,
                optional: match (leaf.descr.max_def_level(), nulls[field.leaf]) {
                    (0, _) | (_, Some(0)) => Some(false),
                    // Nulls in lists are counted, too.
                    (_, Some(_)) if leaf.lists.is_empty() => Some(true),
                    _ => None,
                },
            };
            let offsets = field.offsets.is_some().then(|| offsets_field(&made));
            Some([Some(made), offsets])
        };
        DataFields::of(self.fields.iter().filter_map(field).flatten().flatten().collect())
    }

    /// True for each column that is read for samples, false if it is only compared.
    pub(super) fn is_read(&self, leaf: usize) -> bool {
        self.key == Some(leaf)
            || self.fields.iter().any(|field| field.leaf == leaf || field.path == Some(leaf))
    }
}

impl Tree {
    fn of(schema: &[Node]) -> Result<Self, FileFault> {
        let mut tree = Self::default();
        for node in schema {
            tree.add(node, Around { name: &node.name, level: 0, lists: &[] })?;
        }
        let mut names = BTreeSet::new();
        match tree.leaves.iter().find(|leaf| !names.insert(&leaf.name)) {
            Some(twice) => {
                Err(FileFault::column(&twice.name, "has the name of another column; rename one of them"))
            }
            None => Ok(tree),
        }
    }

    /// Checks that the columns can become these fields, and names the fields with the places of blobs.
    fn check_fields(&self, fields: &mut [FieldPlan]) -> Result<(), FileFault> {
        let mut made = BTreeSet::new();
        for field in fields {
            let leaf = &self.leaves[field.leaf];
            leaf.check()?;
            // A list of blobs becomes two fields.
            if leaf.kind == Kind::Blob && !leaf.lists.is_empty() {
                check_name(&field.name).map_err(|reason| FileFault::column(&leaf.name, reason))?;
                field.offsets = Some(offsets_name(&field.name));
            }
            for name in [Some(&field.name), field.offsets.as_ref()].into_iter().flatten() {
                if !made.insert(name.clone()) {
                    let reason = format!(
                        "becomes the field `{}`, but another column becomes that field as well; rename one of them in `fields`",
                        escaped(name)
                    );
                    return Err(FileFault::column(&leaf.name, reason));
                }
            }
        }
        Ok(())
    }

    /// The field `name`, or the column of that name.
    fn find(&self, name: &str) -> Result<FieldPlan, FileFault> {
        let field = self.fields.iter().find(|field| *field.name == *name).cloned();
        let leaf = || self.leaves.iter().position(|leaf| *leaf.name == *name);
        let column = || Some(FieldPlan { name: Arc::from(name), leaf: leaf()?, path: None, offsets: None });
        field.or_else(column).ok_or_else(|| FileFault::NoColumn { name: escaped(name), known: self.known() })
    }

    /// Names of the columns that become fields, for messages.
    fn known(&self) -> String {
        listed(self.fields.iter().map(|field| escaped(&field.name)), " and others")
    }

    fn add(&mut self, node: &Node, around: Around<'_>) -> Result<(), FileFault> {
        if around.name.len() > MAX_NAME || self.leaves.len() == MAX_COLUMNS {
            let most = format!(
                "has more than {MAX_COLUMNS} columns, or a column whose name has more than {MAX_NAME} bytes"
            );
            return Err(FileFault::damaged(most));
        }
        let level = around.level + i16::from(node.repetition != Repetition::REQUIRED);
        let repeated = [around.lists, &[level]].concat();
        let lists = if node.repetition == Repetition::REPEATED { &repeated } else { around.lists };
        let around = Around { level, lists, ..around };
        match &node.form {
            Form::Column { physical, length, scale } => {
                self.add_column(node, (*physical, *length, *scale), around)
            }
            Form::Group(nodes) => self.add_group(node, nodes, around),
        }
    }

    fn add_column(
        &mut self,
        node: &Node,
        form: (Physical, i32, i32),
        around: Around<'_>,
    ) -> Result<(), FileFault> {
        let (physical, length, scale) = form;
        if physical == Physical::FIXED_LEN_BYTE_ARRAY && length <= 0 {
            return Err(FileFault::column(around.name, format!("has values of {length} bytes")));
        }
        let (column, name) = (self.leaves.len(), Arc::<str>::from(around.name));
        let node_type = Type::primitive_type_builder(&node.name, physical).with_length(length).build();
        let node_type = node_type.map_err(|error| FileFault::column(&name, error.to_string()))?;
        let (depth, path) = (around.lists.len() as i16, ColumnPath::new(Vec::new()));
        let descr = Arc::new(ColumnDescriptor::new(Arc::new(node_type), around.level, depth, path));
        let kind = Kind::of(physical, node.annotation, length, scale);
        self.leaves.push(Leaf {
            name: name.clone(),
            column,
            descr,
            kind,
            annotation: node.annotation,
            lists: around.lists.to_vec(),
            has_nan: false,
        });
        self.fields.push(FieldPlan { name, leaf: column, path: None, offsets: None });
        Ok(())
    }

    fn add_group(&mut self, group: &Node, nodes: &[Node], around: Around<'_>) -> Result<(), FileFault> {
        if let [child] = nodes
            && matches!(group.annotation, Annotation::List | Annotation::Map)
            && child.repetition == Repetition::REPEATED
        {
            // The group around the elements gives them no name. In old files it is the element.
            let is_old = child.name == "array" || child.name.ends_with("_tuple");
            return match &child.form {
                Form::Group(elements)
                    if elements.len() == 1 && !is_old && group.annotation == Annotation::List =>
                {
                    let level = around.level + 1;
                    self.add(
                        &elements[0],
                        Around { level, lists: &[around.lists, &[level]].concat(), ..around },
                    )
                }
                _ => self.add(child, around),
            };
        }
        let first = self.fields.len();
        for node in nodes {
            self.add(node, Around { name: &format!("{}.{}", around.name, node.name), ..around })?;
        }
        // An image or a sound of `datasets`, or a list of them: the bytes of a file, or its path.
        let member = |name: &str| {
            let at = nodes.iter().position(|node| node.name == name)?;
            self.fields.get(first + at).map(|field| field.leaf)
        };
        if let (Some(bytes), Some(path), 2, ..=1) =
            (member("bytes"), member("path"), self.fields.len() - first, around.lists.len())
            && (self.leaves[bytes].kind, self.leaves[path].kind) == (Kind::Blob, Kind::Text)
        {
            self.fields.truncate(first);
            let name = Arc::from(around.name);
            self.fields.push(FieldPlan { name, leaf: bytes, path: Some(path), offsets: None });
        }
        Ok(())
    }
}

impl Kind {
    /// True for floating-point numbers, which have NaN.
    pub(super) fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::Float32 | Self::Float64 | Self::Decimal { .. })
    }

    fn of(physical: Physical, annotation: Annotation, length: i32, scale: i32) -> Self {
        let signed = |dtype| Self::Int { dtype, is_unsigned: false };
        let unsigned = |dtype| Self::Int { dtype, is_unsigned: true };
        match (physical, annotation) {
            (_, Annotation::Interval) => Self::None("has intervals of time"),
            (_, Annotation::Decimal) => Self::Decimal { scale },
            (Physical::BOOLEAN, _) => Self::Bool,
            (Physical::INT32, Annotation::Signed(8)) => signed(Dtype::Int8),
            (Physical::INT32, Annotation::Signed(16)) => signed(Dtype::Int16),
            (Physical::INT32, Annotation::Unsigned(8)) => unsigned(Dtype::Uint8),
            (Physical::INT32, Annotation::Unsigned(16)) => unsigned(Dtype::Uint16),
            // Tensors have no type for them.
            (Physical::INT32 | Physical::INT64, Annotation::Unsigned(_)) => unsigned(Dtype::Int64),
            (Physical::INT32, _) => signed(Dtype::Int32),
            (Physical::INT64, _) => signed(Dtype::Int64),
            (Physical::INT96, _) => Self::Int96,
            (Physical::FLOAT, _) => Self::Float32,
            (Physical::DOUBLE, _) => Self::Float64,
            (Physical::FIXED_LEN_BYTE_ARRAY, Annotation::Float16) if length == 2 => Self::Float16,
            (Physical::BYTE_ARRAY, Annotation::Text) => Self::Text,
            (Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY, _) => Self::Blob,
        }
    }

    /// Type of the fields of values in this number of lists; `None` if the values cannot become a field.
    fn field_type(self, lists: usize) -> Option<FieldType> {
        Some(match (self, lists) {
            (Self::None(_), _) => return None,
            (Self::Bool | Self::Int { .. } | Self::Int96, 0) => FieldType::Int,
            (Self::Float16 | Self::Float32 | Self::Float64 | Self::Decimal { .. }, 0) => FieldType::Real,
            (Self::Blob, _) => FieldType::Bytes,
            (Self::Text, _) => FieldType::Text,
            (_, lists) => FieldType::tensor(self.dtype()?, lists),
        })
    }

    /// Size of an element of a tensor; 1 if the values are no numbers.
    pub(super) fn element_bytes(self) -> usize {
        self.dtype().map_or(1, |dtype| dtype.size())
    }

    /// Type of the elements of a tensor; `None` if the values are no numbers.
    pub(super) fn dtype(self) -> Option<Dtype> {
        Some(match self {
            Self::Bool => Dtype::Boolean,
            Self::Int { dtype, .. } => dtype,
            Self::Int96 => Dtype::Int64,
            Self::Float16 => Dtype::Float16,
            Self::Float32 => Dtype::Float32,
            Self::Float64 | Self::Decimal { .. } => Dtype::Float64,
            Self::Text | Self::Blob | Self::None(_) => return None,
        })
    }
}

impl Leaf {
    fn check_key(&self) -> Result<(), FileFault> {
        if self.lists.is_empty() && matches!(self.kind, Kind::Text | Kind::Int { .. }) {
            return Ok(());
        }
        let reason =
            "has neither texts nor whole numbers, so that its values are no keys; set another `sample_key`";
        Err(FileFault::column(&self.name, reason))
    }

    /// Checks that the values can become a field.
    fn check(&self) -> Result<(), FileFault> {
        let reason = match (self.kind, self.lists.len()) {
            (Kind::None(reason), _) => reason,
            (Kind::Blob, 2..) => "has lists of lists of blobs",
            (Kind::Text, 2..) => "has lists of lists of texts",
            _ => return Ok(()),
        };
        Err(FileFault::column(
            &self.name,
            format!("{reason}, which cannot become a field; name the other columns in `columns`"),
        ))
    }

    /// True if the column has no type, since all of its values are null. It is read as one that the file does not have. Lists without a type
    /// are values, which are empty.
    fn is_null(&self) -> bool {
        self.annotation == Annotation::Null && self.lists.is_empty()
    }

    /// Meaning of values, which their type alone does not state.
    pub(super) fn meaning(&self) -> Annotation {
        match (self.kind, self.annotation) {
            (Kind::Int96, _) => Annotation::Timestamp { unit: Unit::Nanos, is_utc: false },
            (
                Kind::Int { .. },
                of_time @ (Annotation::Date | Annotation::Time(_) | Annotation::Timestamp { .. }),
            ) => of_time,
            // A list of texts becomes a text, and a list of blobs a blob.
            (Kind::Text, _) if !self.lists.is_empty() => Annotation::Text,
            (Kind::Blob, _) if !self.lists.is_empty() => Annotation::List,
            _ => Annotation::Plain,
        }
    }

    /// Predicate of a sentence about the column.
    pub(super) fn in_words(&self) -> String {
        match self.meaning() {
            Annotation::Date => "has dates".to_owned(),
            Annotation::Time(unit) => format!("has times of day in {}", unit.in_words()),
            Annotation::Timestamp { unit, is_utc } => {
                let zone = if is_utc { "of UTC" } else { "without a time zone" };
                format!("has timestamps {zone} in {}", unit.in_words())
            }
            Annotation::Text => "has lists of texts".to_owned(),
            Annotation::List => "has lists of blobs".to_owned(),
            _ => self
                .kind
                .field_type(self.lists.len())
                .map_or_else(|| "has other values".to_owned(), FieldType::in_words),
        }
    }

    /// Bytes of each value, if all have the same.
    pub(super) fn fixed_length(&self) -> Option<usize> {
        let length = usize::try_from(self.descr.type_length()).ok();
        length.filter(|_| self.descr.physical_type() == Physical::FIXED_LEN_BYTE_ARRAY)
    }

    /// Bytes that a value takes at most while it is decoded, beside its page.
    pub(super) fn value_bytes(&self) -> u64 {
        let value = match self.kind {
            Kind::Text | Kind::Blob | Kind::None(_) => size_of::<ByteArray>(),
            _ => size_of::<u64>(),
        };
        // The start of a list, and its length in each dimension.
        let lists =
            if self.lists.is_empty() { 0 } else { size_of::<usize>() + self.lists.len() * size_of::<u32>() };
        // The levels of a batch, or marks of nulls.
        (value + lists + 2 * size_of::<i16>()) as u64
    }
}
