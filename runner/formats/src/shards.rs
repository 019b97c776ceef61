//! Keys of the shards of a data set.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use penstock_engine::notes::Notes;
use penstock_engine::ports::SourceFault;
use penstock_storage::{
    BoundedStore, MAX_INDEX_BYTES, RAISE_BUFFER, RangedObject, StoreError, Version, Wanted, shown,
};
use penstock_types::left_out::Endings;
use penstock_types::resume::Hash;
use penstock_types::spec::{By, SourceRules, SourceSettings};

use crate::reason::blocking;

#[derive(Clone, Debug)]
pub enum Shards {
    Keys(Vec<Arc<str>>),
    Pattern(String),
    /// Keys of a listing, sorted by their bytes.
    Listed(Wanted),
    /// Keys of a listing that have names of TFRecord files.
    TfrecordFiles(Wanted),
}

/// Numbers of samples before each shard, and of all.
#[derive(Clone, Debug)]
pub(crate) struct Starts(Vec<u64>);

impl Shards {
    /// Objects that a source names, which is a checked one. The notes get what a listing leaves out.
    pub fn of(source: &dyn SourceRules, notes: &Notes) -> Self {
        let by = source.place().and_then(|place| place.by.into_iter().next());
        match by.expect("a checked source names its objects") {
            By::Key(key) | By::Index(key) => Self::Keys(vec![Arc::from(key.as_str())]),
            By::Shards(pattern) => Self::Pattern(pattern.as_str().to_owned()),
            By::Prefix(prefix, suffix) => {
                let SourceSettings { hidden, links, .. } = source.settings();
                let (prefix, notes) = (prefix.to_owned(), notes.clone());
                Self::Listed(Wanted { prefix, suffix, hidden, links, notes, except: None })
            }
        }
    }

    /// Keys of the shards, in order; at least one. Fails if a listing seems to have a shard twice.
    pub async fn keys(&self, store: &BoundedStore) -> Result<Vec<Arc<str>>, SourceFault> {
        let keys: Vec<Arc<str>> = match self {
            Self::Keys(keys) => return Ok(keys.clone()),
            Self::Pattern(pattern) => {
                let refused = |fault| SourceFault::new(format!("the pattern `{pattern}` {fault}"), None);
                return expand(pattern).map_err(refused);
            }
            Self::Listed(wanted) => {
                wanted.list(MAX_INDEX_BYTES, store, |_| {}).await?.iter().map(Arc::from).collect()
            }
            Self::TfrecordFiles(wanted) => {
                let listed = wanted.list(MAX_INDEX_BYTES, store, |_| {}).await?;
                let keys: Vec<Arc<str>> =
                    listed.iter().filter(|key| is_tfrecord(key)).map(Arc::from).collect();
                let mut endings = Endings::default();
                listed.iter().filter(|key| !is_tfrecord(key)).for_each(|key| endings.add(&key));
                wanted.notes.leave_out_endings(&endings);
                if keys.is_empty() {
                    let (all, prefix) = (listed.len(), shown(&wanted.prefix));
                    let reason = format!(
                        "none of the {all} objects of store `{}` that start with {prefix} is named as a TFRecord file, such as \
                         `a.tfrecord` or `a.tfrecord-00000-of-00008`; name other files by a pattern",
                        store.name()
                    );
                    return Err(SourceFault::new(reason, None));
                }
                keys
            }
        };
        match compressed_twice(&keys) {
            None => Ok(keys),
            Some((one, other)) => {
                let (one, other, store) = (shown(one), shown(other), store.name());
                let reason = format!(
                    "store `{store}` has both {one} and {other}, which seem to be the same data: remove one of them, or name those to read by `shards`"
                );
                Err(SourceFault::new(reason, None))
            }
        }
    }
}

/// Two keys that differ by their compression alone, if there are any.
fn compressed_twice(keys: &[Arc<str>]) -> Option<(&str, &str)> {
    if keys.iter().all(|key| matches!(uncompressed(key), Cow::Borrowed(name) if name.len() == key.len())) {
        return None;
    }
    let mut names = HashMap::with_capacity(keys.len());
    keys.iter().find_map(|key| names.insert(uncompressed(key), &**key).map(|other| (other, &**key)))
}

/// A key without the end that names its compression.
fn uncompressed(key: &str) -> Cow<'_, str> {
    match key.rsplit_once('.') {
        Some((name, end)) if ["gz", "zst"].iter().any(|known| end.eq_ignore_ascii_case(known)) => name.into(),
        Some((name, end)) if end.eq_ignore_ascii_case("tgz") => format!("{name}.tar").into(),
        _ => key.into(),
    }
}

/// Hash of what `hash` is the hash of, followed by an object of this version; `None` stands for a missing one. True copies of the object
/// in other folders have the same hash.
pub(crate) fn with_version(hash: Hash, key: &str, version: Option<&Version>) -> Hash {
    let size = version.map_or(u64::MAX, |version| version.size);
    let tag = version.and_then(Version::copied_tag).unwrap_or_default();
    // The zeros separate texts.
    [key.as_bytes(), &[0], &size.to_le_bytes(), tag.as_bytes(), &[0]].into_iter().fold(hash, Hash::with)
}

/// Version of an object that was asked for; `None` if there is no such object.
pub(crate) fn found(version: Result<Version, StoreError>) -> Result<Option<Version>, SourceFault> {
    match version {
        Ok(version) => Ok(Some(version)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Digest of shards: of the key, size and number of samples of each.
pub(crate) fn digest<'a>(shards: impl Iterator<Item = (&'a str, u64, u64)>) -> Hash {
    shards.fold(Hash::EMPTY, |hash, (key, size, samples)| {
        hash.with(key.as_bytes()).with(&size.to_le_bytes()).with(&samples.to_le_bytes())
    })
}

impl Starts {
    pub(crate) fn new(samples: impl Iterator<Item = u64>) -> Self {
        let mut starts = vec![0];
        starts.extend(samples.scan(0_u64, |sum, samples| {
            *sum = sum.saturating_add(samples);
            Some(*sum)
        }));
        Self(starts)
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.last().copied().unwrap_or(0)
    }

    /// Position of a sample's shard, and number of the sample in it. Panics when `sample` is not below the number of samples.
    pub(crate) fn find(&self, sample: u64) -> (usize, u64) {
        let place = self.0.partition_point(|start| *start <= sample) - 1;
        (place, sample - self.0[place])
    }

    pub(crate) fn bytes(&self) -> u64 {
        size_of_val(&*self.0) as u64
    }
}

/// True for names as writers of TFRecord files choose them: `NAME.tfrecord`, also with `s`, `-00000-of-00008`, `.gz` or `.zst` after it.
fn is_tfrecord(key: &str) -> bool {
    let Some((_, end)) = key.rsplit_once(".tfrecord") else { return false };
    let end = end.strip_prefix('s').unwrap_or(end);
    let end = end.strip_suffix(".gz").or(end.strip_suffix(".zst")).unwrap_or(end);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let part = end.strip_prefix('-').and_then(|part| part.split_once("-of-"));
    end.is_empty() || part.is_some_and(|(part, of)| is_number(part) && is_number(of))
}

pub(crate) async fn versions(store: &BoundedStore, keys: Vec<Arc<str>>) -> Vec<Result<Version, StoreError>> {
    let asked = keys.into_iter().map(|key| {
        let store = store.clone();
        async move { store.version(key).await }
    });
    stream::iter(asked).buffered(store.reads().get()).collect().await
}

/// The index `key` of shards, of at most `most_bytes`, as `read` returns it. The error of that is the end of a sentence.
pub(crate) async fn read_index<T: Send + 'static, E: Display + Send + 'static>(
    store: &BoundedStore,
    key: &Arc<str>,
    most_bytes: u64,
    read: impl FnOnce(Bytes) -> Result<T, E> + Send + 'static,
) -> Result<T, SourceFault> {
    let fault =
        |reason: &dyn Display| SourceFault::new(format!("the index {} {reason}", store.named(key)), None);
    let object = RangedObject::open(store.clone(), key.clone(), 0).await?;
    let (size, most) = (object.size(), most_bytes.min(MAX_INDEX_BYTES));
    if size > most {
        let reason = format!("has {size} bytes, more than the limit of {most}{RAISE_BUFFER}");
        return Err(fault(&reason));
    }
    let bytes = object.read(0..size).await?;
    blocking("reading the index", move || read(bytes)).await?.map_err(|reason| fault(&reason))
}

/// Maximum number of shards that a pattern may name.
pub const MAX_SHARDS: usize = 1_000_000;

/// Reason why a pattern names no shards. Each is the end of a sentence about the pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternFault {
    #[error("has a `{{` without its `}}`, or the reverse")]
    Braces,
    #[error("has `{{{0}}}`, which is neither a range such as `{{000..127}}` nor a list such as `{{a,b}}`")]
    Choice(String),
    #[error("names more than {MAX_SHARDS} shards")]
    TooMany,
}

/// Keys that a pattern names: `{000..127}` stands for each number of the range, with as many digits, and `{a,b}` for each word.
pub fn expand(pattern: &str) -> Result<Vec<Arc<str>>, PatternFault> {
    let mut keys = vec![String::new()];
    let mut rest = pattern;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, braces) = rest.split_at(at);
        let (choice, after) =
            braces.strip_prefix('{').and_then(|rest| rest.split_once('}')).ok_or(PatternFault::Braces)?;
        let words = words(choice)?;
        if keys.len().saturating_mul(words.len()) > MAX_SHARDS {
            return Err(PatternFault::TooMany);
        }
        keys = keys
            .iter()
            .flat_map(|key| words.iter().map(move |word| format!("{key}{before}{word}")))
            .collect();
        rest = after;
    }
    Ok(keys.into_iter().map(|key| Arc::from(key + rest)).collect())
}

fn words(choice: &str) -> Result<Vec<String>, PatternFault> {
    let fault = || PatternFault::Choice(choice.chars().take(40).collect());
    if let Some((first, last)) = choice.split_once("..") {
        let number = |text: &str| {
            text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten()
        };
        let (Some(from), Some(to)) = (number(first), number(last)) else { return Err(fault()) };
        if to < from {
            return Err(fault());
        }
        if to - from >= MAX_SHARDS as u64 {
            return Err(PatternFault::TooMany);
        }
        // Numbers have the digits of the first one, as in a shell.
        let digits = first.len();
        return Ok((from..=to).map(|number| format!("{number:0digits$}")).collect());
    }
    match choice.contains(',') && !choice.contains('{') {
        true => Ok(choice.split(',').map(str::to_owned).collect()),
        false => Err(fault()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_lists_name_each_shard() {
        let expand = |pattern| expand(pattern).unwrap().iter().map(|key| key.to_string()).collect::<Vec<_>>();
        assert_eq!(expand("a-{008..011}.tar"), ["a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"]);
        assert_eq!(expand("{x,y}/{0..1}"), ["x/0", "x/1", "y/0", "y/1"]);
        assert_eq!(expand("one.tar"), ["one.tar"]);
        assert_eq!(expand("{9..10}"), ["9", "10"]);
    }

    #[test]
    fn tfrecord_files_are_known_by_their_names() {
        for key in [
            "a.tfrecord",
            "b/a.tfrecords",
            "a.tfrecord.gz",
            "a.tfrecord-00000-of-00128",
            "a.tfrecord-0-of-1.gz",
            "a.tfrecords.zst",
        ] {
            assert!(is_tfrecord(key), "{key}");
        }
        for key in
            ["a.tfrecord.index", "a.tfrecord-0", "a.tfrecord-x-of-2", "a.tfrecordx", "tfrecord", "a.tar"]
        {
            assert!(!is_tfrecord(key), "{key}");
        }
    }

    #[test]
    fn keys_that_differ_by_their_compression_alone_are_found() {
        let found = |keys: &[&str]| {
            let keys: Vec<Arc<str>> = keys.iter().map(|key| Arc::from(*key)).collect();
            compressed_twice(&keys).map(|(one, other)| format!("{one} {other}"))
        };
        assert_eq!(found(&["a.ndjson", "b.ndjson.gz"]), None);
        assert_eq!(found(&["a", "a.b", "tgz"]), None);
        for (one, other) in [
            ("a.ndjson", "a.ndjson.GZ"),
            ("a.ndjson.gz", "a.ndjson.zst"),
            ("a.tar", "a.tgz"),
            ("a.tar.gz", "a.tgz"),
            ("a.tfrecord", "a.tfrecord.gz"),
        ] {
            assert_eq!(found(&["0", one, "b", other]), Some(format!("{one} {other}")));
        }
    }

    #[test]
    fn samples_are_found_in_the_shard_that_has_them() {
        let starts = Starts::new([2, 0, 3].into_iter());
        assert_eq!(starts.count(), 5);
        assert_eq!([0, 1, 2, 4].map(|sample| starts.find(sample)), [(0, 0), (0, 1), (2, 0), (2, 2)]);
        assert_eq!(Starts::new([].into_iter()).count(), 0);
    }

    #[test]
    fn patterns_without_a_meaning_are_refused() {
        for (pattern, fault) in [
            ("a{0..9", PatternFault::Braces),
            ("a}", PatternFault::Braces),
            ("{a}", PatternFault::Choice("a".to_owned())),
            ("{}", PatternFault::Choice(String::new())),
            ("{9..1}", PatternFault::Choice("9..1".to_owned())),
            ("{0..99999999999999999999}", PatternFault::Choice("0..99999999999999999999".to_owned())),
            ("{0..1000000}", PatternFault::TooMany),
            ("{0..9999}{0..9999}", PatternFault::TooMany),
        ] {
            assert_eq!(expand(pattern), Err(fault), "{pattern}");
        }
    }
}
