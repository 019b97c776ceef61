//! The kinds of sources whose samples are in files of a format. Each kind is a module, which reads its files.

pub mod mds;
pub mod parquet;
pub mod tar;
pub mod tfrecord;

use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_engine::numbered::Open;
use penstock_engine::ports::SourceFault;
use penstock_engine::typed::{Cures, Typing};
use penstock_types::spec::{IndexSource, ListSource, MixSource, RangeSource, Source};
use penstock_types::traversal::TraversalSettings;

use crate::access::Access;
use crate::in_order::ShardStream;

/// Source whose samples are not in files of a format.
pub enum OtherSource<'a> {
    List(&'a ListSource),
    Index(&'a IndexSource),
    /// Lines, or rows of tables, in objects that their rules name.
    Records,
    Range(&'a RangeSource),
    Mix(&'a MixSource),
}

/// Opens the samples of a source in files, to be read by their numbers. `Err` is any other source, for the caller to open.
pub fn open<'a>(source: &'a Source, access: impl FnOnce() -> Access) -> Result<Open, OtherSource<'a>> {
    Ok(match source {
        Source::Tar(source) => tar::open(source, access()),
        Source::Parquet(source) => parquet::open(source, access()),
        Source::Tfrecord(source) => tfrecord::open(source, access()),
        Source::Mds(source) => mds::open(source, access()),
        Source::List(list) => return Err(OtherSource::List(list)),
        Source::Index(index) => return Err(OtherSource::Index(index)),
        Source::Records(_) | Source::Csv(_) | Source::Tsv(_) => return Err(OtherSource::Records),
        Source::Range(range) => return Err(OtherSource::Range(range)),
        Source::Mix(mix) => return Err(OtherSource::Mix(mix)),
    })
}

/// Samples in the order of the files; `None` for a source that is read by numbers.
pub fn stream(
    source: &Source,
    access: impl FnOnce() -> Access,
    typing: impl FnOnce() -> Typing,
    settings: TraversalSettings,
) -> Option<ShardStream> {
    match source {
        Source::Tar(source) if source.index.is_none() => {
            Some(tar::stream(source, access(), typing(), settings))
        }
        Source::Tfrecord(source) if source.index.is_none() => {
            Some(tfrecord::stream(source, access(), typing(), settings))
        }
        _ => None,
    }
}

/// Number of samples of a source that counts them without opening them.
pub fn count(
    source: &Source,
    access: impl FnOnce() -> Access,
) -> Option<BoxFuture<'_, Result<u64, SourceFault>>> {
    match source {
        Source::Tfrecord(source) if source.index.is_none() => {
            let access = access();
            Some(async move { tfrecord::count(source, &access).await }.boxed())
        }
        _ => None,
    }
}

/// Types that the names of files and fields determine, and the remedy for values that do not fit together.
pub fn typing(source: &Source) -> Typing {
    let of = |differs| Typing { cures: Cures::of(differs), ..Typing::default() };
    match source {
        Source::Tar(source) => Typing {
            declared: tar::types(source),
            kind_of: tar::type_of,
            ..of("name the files of a field in `fields`")
        },
        Source::Tfrecord(_) => {
            of("name the feature in `lists`, `scalars` or `texts`, or leave it out by `fields`")
        }
        _ => of("write the data with one type, or leave the field out"),
    }
}
