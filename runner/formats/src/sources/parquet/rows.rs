//! Samples of the rows, read by their numbers.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};
use penstock_engine::chunk::{Chunk, Outcome};
use penstock_engine::item::{Field, Origin, Sample, Value};
use penstock_engine::lock::locked;
use penstock_engine::numbered::{Numbered, ReadFault, ReadSamples};
use penstock_engine::ports::{Fault, SourceFault};
use penstock_engine::share::Share;
use penstock_storage::RAISE_BUFFER;
use penstock_types::data_set::DataFields;
use penstock_types::left_out::LeftOutReason;
use penstock_types::plan::LEAST_SAMPLE_BYTES;
use penstock_types::resume::Hash;
use penstock_types::run::FailureClass;
use penstock_types::spec::ParquetSource;
use tracing::warn;

use super::columns::FieldPlan;
use super::decode::{Column, RowFault};
use super::fault::FileFault;
use super::filter::{self, Selected};
use super::groups::{Columns, File, Group, Reader};
use super::open::Opened;
use crate::access::Access;
use crate::cache::{Cache, InUse, Limits};
use crate::damage::Damage;
use crate::in_order::Made;
use crate::shards::{Starts, digest, with_version};

/// Number of row groups that one read waits for at a time.
const AT_A_TIME: usize = 8;

/// Bytes of the rows that follow in order, of which the row groups stay in memory.
const IN_ORDER: u64 = 64 << 20;

/// Bytes of row groups that stay in memory, though no sample uses them, if those of all rows that follow in order are more than that.
const UNUSED_IN_ORDER: u64 = 8 << 20;

pub(super) struct Rows {
    reader: Reader,
    files: Vec<File>,
    groups: Vec<Group>,
    fields: DataFields,
    damage: Damage,
    starts: Starts,
    mean_bytes: u64,
    cache: Cache<Columns>,
    /// Outcomes of the samples in damaged row groups, by group.
    damaged: Mutex<HashMap<usize, Outcome>>,
    /// Memory that the places of the row groups take, in bytes.
    kept: u64,
    /// Maximum size of a row group, and of a row, in bytes.
    most_bytes: u64,
}

/// Reason for a file that is named, and not contained.
const PATH: &str = "has the path of a file instead of its bytes; write the data set with its files, as `push_to_hub` of `datasets` does";

struct Member {
    index: u64,
    group: usize,
    row: u64,
    /// Position among the rows that are read together.
    place: usize,
}

/// A blob in the memory of its page. Its row group stays in use for as long as the blob does.
struct Shared {
    columns: Arc<InUse<Columns>>,
    leaf: usize,
    row: usize,
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        let column = self.columns.value()[self.leaf].as_ref();
        column.and_then(|column| column.large_blob(self.row)).unwrap_or_default()
    }
}

impl Rows {
    /// Finds the rows that meet the comparisons of the source, by one pass over their columns. The row groups in memory take half of what
    /// may be kept, and the marks of selected rows an eighth of that half.
    pub(super) async fn new(
        source: &ParquetSource,
        Access { store, damage, most_bytes }: Access,
        Opened { files, mut groups, fields }: Opened,
    ) -> Result<Self, SourceFault> {
        let most_bytes = most_bytes / 2;
        let (reader, cache) =
            (Reader::new(store), Cache::new(Limits { all: most_bytes, shared: 0, unused: most_bytes }));
        let layout = |group: &Group| &*files[group.file as usize].layout;
        let mut most_needed = 0;
        let may_grow = groups.iter().any(Group::may_grow);
        for group in groups.iter().filter(|group| group.count > 0) {
            let compared = |leaf: usize| layout(group).filter.contains(&Some(leaf));
            let needed = group
                .needed_bytes(layout(group), |leaf| layout(group).is_read(leaf))
                .max(group.needed_bytes(layout(group), compared));
            most_needed = most_needed.max(needed);
            check_size(|| group.named(&files[group.file as usize], &reader.store), needed, most_bytes)?;
        }
        if !source.filter.is_empty() {
            let all: u64 = groups.iter().map(|group| group.rows).sum();
            let lost = select(&reader, &cache, &files, &mut groups, source, &damage, most_bytes / 8).await?;
            let taken: u64 = groups.iter().map(|group| group.count).sum();
            damage.notes.leave_out(LeftOutReason::Where, all - taken - lost, []);
        }
        let used: Vec<u64> = groups
            .iter()
            .filter(|group| group.count > 0)
            .map(|group| group.decoded_bytes(layout(group), |leaf| layout(group).is_read(leaf)))
            .collect();
        let limits = match limits(&used, source, most_bytes, most_needed)? {
            // Samples that share memory could keep a row group that has grown from being read.
            limits if may_grow => Limits { all: most_bytes, shared: 0, ..limits },
            limits => limits,
        };
        let mean_bytes =
            used.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)) / rows_of(&groups).max(1);
        let starts = Starts::new(groups.iter().map(|group| group.count));
        if starts.count() == u64::MAX {
            return Err(SourceFault::new("the files have more rows than a number can state", None));
        }
        let kept = groups.iter().map(Group::bytes).sum();
        let (cache, damaged) = (Cache::new(limits), Mutex::default());
        Ok(Self {
            reader,
            files,
            groups,
            fields,
            damage,
            starts,
            mean_bytes,
            cache,
            damaged,
            kept,
            most_bytes,
        })
    }

    /// Row group and row of a sample. Panics when `index` is not below the number of samples.
    fn find(&self, index: u64) -> (usize, u64) {
        let (group, position) = self.starts.find(index);
        let row = self.groups[group].selected.as_ref().map_or(position, |selected| selected.row(position));
        (group, row)
    }

    async fn columns(&self, number: usize) -> Result<InUse<Columns>, SourceFault> {
        let group = &self.groups[number];
        let file = &self.files[group.file as usize];
        let is_read = |leaf: usize| file.layout.is_read(leaf);
        let read = move |needed| {
            self.cache.get(number, needed, move |reserved| self.reader.read(file, group, is_read, reserved))
        };
        read_growing(&self.reader, file, group, is_read, self.most_bytes, read).await
    }

    /// The columns of a row group, or the outcome of its samples if it is damaged. A damaged row group is read once.
    async fn whole_columns(&self, number: usize) -> Result<Result<InUse<Columns>, Outcome>, SourceFault> {
        let known = locked(&self.damaged).get(&number).cloned();
        if let Some(outcome) = known {
            return Ok(Err(outcome));
        }
        match self.columns(number).await {
            Ok(columns) => Ok(Ok(columns)),
            Err(fault) => {
                let outcome = self.damage.sample(fault)?;
                locked(&self.damaged).insert(number, outcome.clone());
                Ok(Err(outcome))
            }
        }
    }

    /// Samples of rows in one row group, as far as there is room, each with its place, and its outcome if it is damaged.
    async fn samples(
        &self,
        epoch: u32,
        members: Vec<Member>,
        share: &Share,
    ) -> Vec<(usize, Result<Made, SourceFault>)> {
        let Some(first) = members.first() else { return Vec::new() };
        let columns = match self.whole_columns(first.group).await {
            Ok(Ok(columns)) => columns,
            Err(fault) => return vec![(first.place, Err(fault))],
            Ok(Err(outcome)) => {
                let group = &self.groups[first.group];
                let file = &self.files[group.file as usize];
                let lost = |member: &Member| {
                    let key = format!("{}#{}", file.key, group.first_row + member.row);
                    (Sample::new(key, Origin::at(epoch, member.index)), Some(outcome.clone()))
                };
                return members.iter().map(|member| (member.place, Ok(lost(member)))).collect();
            }
        };
        let (group, columns) = (&self.groups[first.group], Arc::new(columns));
        let can_share = self.cache.can_share();
        let file = &self.files[group.file as usize];
        let mut key = String::new();
        let mut sample = |member: &Member| {
            let origin = Origin::at(epoch, member.index);
            let bytes = bytes_of(file, columns.value(), member.row);
            let is_large = bytes > self.most_bytes;
            if !is_large && !share.take(member.place, bytes) {
                return None;
            }
            write_key(file, group, columns.value(), member.row, &mut key);
            let made = match is_large {
                true => Err(FileFault::LargeRow { bytes, most: self.most_bytes }),
                false => sample(file, &columns, can_share, member.row, origin, &key),
            };
            let reason = match made {
                Ok(sample) => return Some(Ok((sample, None))),
                Err(reason) => reason,
            };
            let (named, row) = (group.named(file, &self.reader.store), group.first_row + member.row);
            let message = format!("row {row} in {named} {reason}");
            let outcome = match reason {
                // A value that no tensor has is no damage: it fails its row.
                FileFault::Row { .. } | FileFault::LargeRow { .. } => {
                    Outcome::Failed(Fault::new(FailureClass::Data, message))
                }
                _ => match self.damage.sample(SourceFault::damage(message)) {
                    Ok(outcome) => outcome,
                    Err(fault) => return Some(Err(fault)),
                },
            };
            Some(Ok((Sample::new(key.as_str(), origin), Some(outcome))))
        };
        members.iter().map_while(|member| Some((member.place, sample(member)?))).collect()
    }
}

/// Number of rows in the row groups that are read.
fn rows_of(groups: &[Group]) -> u64 {
    groups.iter().filter(|group| group.count > 0).fold(0, |sum, group| sum.saturating_add(group.rows))
}

/// Marks the rows that meet all comparisons. The marks may take `most_bytes`. Returns the number of rows in damaged row groups, which are
/// left out.
async fn select(
    reader: &Reader,
    cache: &Cache<Columns>,
    files: &[File],
    groups: &mut [Group],
    source: &ParquetSource,
    damage: &Damage,
    most_bytes: u64,
) -> Result<u64, SourceFault> {
    let rows = rows_of(groups);
    if rows / 7 > most_bytes {
        let reason = format!(
            "the marks of the rows that meet `where` take a bit for each of {rows} rows, and {most_bytes} bytes may be used"
        );
        return Err(SourceFault::new(format!("{reason}{RAISE_BUFFER}"), None));
    }
    let scans =
        groups.iter().enumerate().filter(|(_, group)| group.count > 0).map(|(number, group)| async move {
            let file = &files[group.file as usize];
            let is_compared = |leaf: usize| file.layout.filter.contains(&Some(leaf));
            let read = move |needed| async move {
                let reserved = cache.reserve(needed).await;
                reader.read(file, group, is_compared, reserved).await
            };
            let read = read_growing(reader, file, group, is_compared, cache.limits.all, read).await;
            let (columns, _reserved) = match read {
                Ok(read) => read,
                Err(fault) => {
                    damage.part(&group.named(file, &reader.store), Some(group.rows), fault)?;
                    return Ok((number, None));
                }
            };
            let compared: Vec<_> = source
                .filter
                .iter()
                .zip(&file.layout.filter)
                .filter_map(|(one, leaf)| Some((one, columns[(*leaf)?].as_ref()?)))
                .collect();
            let meets =
                |row| compared.iter().all(|(comparison, column)| filter::meets(comparison, column, row));
            Ok::<_, SourceFault>((number, Some(Selected::new((0..group.rows as usize).map(meets)))))
        });
    let scans: Vec<_> = scans.collect();
    let found: Vec<_> = stream::iter(scans).buffer_unordered(AT_A_TIME).try_collect().await?;
    let mut lost = 0;
    for (number, selected) in found {
        let group = &mut groups[number];
        let Some(selected) = selected else {
            lost += std::mem::take(&mut group.count);
            continue;
        };
        group.count = selected.count;
        group.selected = (1..group.rows).contains(&group.count).then_some(selected);
    }
    Ok(lost)
}

/// Reads the columns at these positions by `read`, which is given the memory that this takes, and again if they are found to take more.
async fn read_growing<T, F>(
    reader: &Reader,
    file: &File,
    group: &Group,
    is_wanted: impl Fn(usize) -> bool + Copy,
    most_bytes: u64,
    read: impl Fn(u64) -> F,
) -> Result<T, SourceFault>
where
    F: Future<Output = Result<T, SourceFault>>,
{
    let mut needed = reader.needed_bytes(group, &file.layout, is_wanted);
    loop {
        check_size(|| group.named(file, &reader.store), needed, most_bytes)?;
        let read = read(needed).await;
        let before = std::mem::replace(&mut needed, reader.needed_bytes(group, &file.layout, is_wanted));
        if read.is_ok() || needed <= before {
            return read;
        }
    }
}

/// Fails if a row group takes more memory than may be used.
fn check_size(named: impl FnOnce() -> String, needed: u64, most_bytes: u64) -> Result<(), SourceFault> {
    if needed <= most_bytes {
        return Ok(());
    }
    let reason = format!("{} takes up to {needed} bytes of memory, and {most_bytes} may be used", named());
    let remedy = "name fewer `columns`, or write the file with smaller row groups";
    Err(SourceFault::new(format!("{reason}; {remedy}{RAISE_BUFFER}"), None))
}

/// Memory for row groups of these sizes, of which a part stays in memory. Reading one of them takes up to `needed` bytes.
fn limits(used: &[u64], source: &ParquetSource, most_bytes: u64, needed: u64) -> Result<Limits, SourceFault> {
    let mut sizes = used.to_vec();
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    let sum = |count: usize| sizes.iter().take(count).fold(0, |sum: u64, size| sum.saturating_add(*size));
    let window = source.window.map_or(usize::MAX, |window| window.get() as usize);
    if !source.shuffle {
        let all = most_bytes.min(IN_ORDER.max(2 * sum(2)));
        // A row group can be read whatever samples share.
        let shared = (all / 4 * 3).min(all.saturating_sub(needed));
        let unused = if sum(usize::MAX) <= all { all } else { UNUSED_IN_ORDER.max(2 * sum(2)) };
        return Ok(Limits { all, shared, unused });
    }
    // In any other order, samples would keep more row groups than the window has.
    let limits = Limits { all: most_bytes, shared: 0, unused: most_bytes };
    if sum(window) <= most_bytes {
        return Ok(limits);
    }
    let fits = (1..sizes.len()).take_while(|count| sum(*count) <= most_bytes).count().max(1);
    if window < sizes.len() {
        let message = format!(
            "a window of {window} row groups takes up to {} bytes of memory, and {most_bytes} may be used; set `window` to {fits} or \
             less{RAISE_BUFFER}",
            sum(window)
        );
        return Err(SourceFault::new(message, None));
    }
    warn!(
        row_groups = sizes.len(),
        bytes = sum(usize::MAX),
        may_use = most_bytes,
        "a shuffle of all row groups, which do not fit into memory, reads a row group for nearly each sample; set `window` to {fits} or less"
    );
    Ok(limits)
}

/// Memory of the sample of a row in bytes, before it is made.
fn bytes_of(file: &File, columns: &Columns, row: u64) -> u64 {
    let leaves = file.layout.fields.iter().map(|field| field.leaf).chain(file.layout.key);
    let columns = leaves.filter_map(|leaf| columns[leaf].as_ref());
    columns.map(|column| column.value_bytes(row as usize)).fold(LEAST_SAMPLE_BYTES, u64::saturating_add)
}

fn write_key(file: &File, group: &Group, columns: &Columns, row: u64, key: &mut String) {
    let at = row as usize;
    key.clear();
    if let Some(column) = file.layout.key.and_then(|leaf| columns[leaf].as_ref()) {
        match (column.int(at), column.content(at)) {
            (Some(number), _) => write!(key, "{number}").unwrap_or_default(),
            (None, Some(text)) => key.push_str(&String::from_utf8_lossy(text)),
            (None, None) => {}
        }
    }
    if key.is_empty() {
        // Writing into memory cannot fail.
        write!(key, "{}#{}", file.key, group.first_row + row).unwrap_or_default();
    }
}

fn sample(
    file: &File,
    in_use: &Arc<InUse<Columns>>,
    can_share: bool,
    row: u64,
    origin: Origin,
    key: &str,
) -> Result<Sample, FileFault> {
    let (layout, columns, at) = (&file.layout, in_use.value(), row as usize);
    let column = |leaf: usize| columns[leaf].as_ref();
    let is_elsewhere = |field: &FieldPlan, values: &Column| {
        field.path.and_then(column).is_some_and(|path| path.names_file_beside(values, at))
    };
    let mut fields = Vec::with_capacity(layout.fields.len());
    for field in &layout.fields {
        let Some(values) = column(field.leaf) else { continue };
        let name = &layout.leaves[field.leaf].name;
        let value = match values.large_blob(at).filter(|_| can_share) {
            Some(_) => {
                let blob = Shared { columns: in_use.clone(), leaf: field.leaf, row: at };
                Some(Value::Blob(Bytes::from_owner(blob)))
            }
            None => match values.value(at) {
                Err(RowFault::Shape(_)) if is_elsewhere(field, values) => {
                    return Err(FileFault::column(name, PATH));
                }
                value => value.map_err(|fault| fault_of(name, fault))?,
            },
        };
        if let Some(value) = value {
            fields.push(Field { name: field.name.clone(), value });
            if let Some(offsets) = &field.offsets {
                let value = values.offsets(at).map_err(|fault| fault_of(name, fault))?;
                fields.push(Field { name: offsets.clone(), value });
            }
        } else if is_elsewhere(field, values) {
            return Err(FileFault::column(name, PATH));
        }
    }
    Ok(Sample { key: key.into(), origin, fields })
}

fn fault_of(name: &str, fault: RowFault) -> FileFault {
    match fault {
        RowFault::Damaged(reason) => FileFault::column(name, reason),
        RowFault::Shape(reason) => FileFault::row(name, reason),
    }
}

impl Numbered for Rows {
    fn digest(&self) -> Option<Hash> {
        let files = self.files.iter();
        let versions =
            files.fold(Hash::EMPTY, |hash, file| with_version(hash, &file.key, Some(&file.version)));
        Some(self.groups.iter().fold(versions, |hash, group| hash.with(&group.count.to_le_bytes())))
    }

    fn older_digest(&self) -> Option<Hash> {
        let groups = self.groups.iter().map(|group| (&self.files[group.file as usize], group));
        Some(digest(groups.map(|(file, group)| (&*file.key, file.version.size, group.count))))
    }

    fn fields(&self) -> Option<DataFields> {
        Some(self.fields.clone())
    }

    fn count(&self) -> u64 {
        self.starts.count()
    }

    fn units(&self) -> Arc<[u64]> {
        self.groups.iter().map(|group| group.count).collect()
    }

    fn mean_bytes(&self) -> u64 {
        self.mean_bytes
    }

    fn read(self: Arc<Self>, epoch: u32, indexes: Vec<u64>, share: Share) -> ReadSamples {
        async move {
            let mut groups: BTreeMap<usize, Vec<Member>> = BTreeMap::new();
            for (place, &index) in indexes.iter().enumerate() {
                let (group, row) = self.find(index);
                groups.entry(group).or_default().push(Member { index, group, row, place });
            }
            let reads =
                stream::iter(groups.into_values().map(|members| self.samples(epoch, members, &share)));
            let mut read: Vec<_> = reads.buffer_unordered(AT_A_TIME).concat().await;
            // A row group that cannot be read has one fault, at its first place.
            read.sort_by_key(|(place, _)| *place);
            let mut samples = Chunk::with_capacity(read.len());
            for (place, sample) in read {
                match sample {
                    _ if place > samples.len() => break,
                    Ok((sample, outcome)) => samples.add(sample, outcome),
                    Err(fault) => return Err(ReadFault { before: samples, fault }),
                }
            }
            Ok(samples)
        }
        .boxed()
    }

    fn kept_bytes(&self) -> u64 {
        self.kept + self.cache.used()
    }

    fn objects(&self) -> Vec<Arc<str>> {
        self.files.iter().map(|file| file.key.clone()).collect()
    }
}
