//! State from which an interrupted pass over a source continues: the positions whose samples are settled.
//!
//! A position is settled once its sample was handed out, left out on purpose, or failed under the policy of its stage. The positions of an
//! epoch are dealt to ranks: of the sequence that was left when the run began ([`Rest`]), a rank gets every `world`-th one. What a rank has
//! settled is stated by the numbers of its own positions, so that the size of a state depends only on what is in flight.

mod deal;
mod ranges;
mod rest;
mod settled;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::NonZeroU32;

pub(crate) use deal::Visits;
pub use deal::{EpochShare, StartPoint};
pub use rest::{Rest, Stride};
use serde::{Deserialize, Serialize};
pub use settled::{EpochProgress, LEAST_CHILD_BYTES, LEAST_EPOCH_BYTES, LEAST_RANGE_BYTES, Progress};

use crate::data_set::DataFields;
use crate::defaults::is_default;
use crate::ledger::RunBook;
use crate::traversal::{Shard, TraversalSettings, Uneven};

/// Number of the rules by which sources select what they take.
const SELECTION: u32 = 1;

/// Version of the form of a [`Token`].
const VERSION: u32 = 1;

/// Maximum size of a state that can be read, in bytes.
pub const MAX_TOKEN_BYTES: u64 = 16 << 20;

/// Maximum number of strides of an epoch's remaining positions.
const MAX_STRIDES: usize = 1 << 18;

/// Maximum number of settled samples in a state that is read: what a run adds to them does not overflow.
const MOST_SETTLED: u64 = 1 << 62;

/// Share of a process that reads all of a source.
const ALONE: Shard = Shard { rank: 0, world: NonZeroU32::MIN, uneven: Uneven::Drop };

/// State of one or several ranks of a run. It is written as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// Version of the form.
    version: u32,
    /// Digests of the parts of the pipeline that determine its samples, by name.
    pub recipe: BTreeMap<String, String>,
    /// Number of samples in the source, if it was known.
    pub count: Option<u64>,
    /// Digest of the index of the source, or of its bytes, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Hash>,
    /// Number of blocks that the digest covers, if these are not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u64>,
    /// Fields that were learnt from a part of the samples, by the id of the source; in a mixture, by the name of the source in it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, DataFields>,
    /// Number of the rules by which sources select what they take: 0 for states that older versions wrote.
    #[serde(default, skip_serializing_if = "is_default")]
    pub selection: u32,
    /// Number of positions in an epoch, if the document limits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Number of the first pass of the run.
    pub first_epoch: u32,
    /// Number of ranks to which the positions are dealt.
    pub world: NonZeroU32,
    /// Handling of the last positions when `world` does not divide their number.
    pub uneven: Uneven,
    /// Positions of an epoch that were left when this world began it; all positions of other epochs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rests: BTreeMap<u32, Rest>,
    /// States of the ranks.
    pub ranks: BTreeMap<u32, RankState>,
    /// Samples settled by runs with another number of ranks.
    pub before: RunBook,
    /// Settings that the run has changed, by their places in the document.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, ChangedSetting>,
}

/// A setting that a run has changed. A resumed run changes it, too, if its document still has the value `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangedSetting {
    /// Value in the document.
    pub from: u32,
    /// Value that held at the end.
    pub to: u32,
}

/// Facts that determine which samples the positions of a source stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataSet {
    /// Number of samples, if it is known.
    pub count: Option<u64>,
    /// Digest of their index: of the keys of the samples, of the keys, sizes and numbers of samples of their files, or of the bytes of
    /// their blocks.
    pub digest: Option<Hash>,
    /// Number of blocks, from the first one, that the digest covers; `None` if it covers all data.
    pub blocks: Option<u64>,
}

/// Version number of a state; its other fields are ignored.
#[derive(Deserialize)]
struct Version {
    version: Option<u64>,
}

/// Positions that a rank has settled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankState {
    /// Epochs that the rank has begun and not settled, and the last one that it has settled. It has settled all earlier ones, and begun
    /// no later one.
    pub epochs: Vec<EpochState>,
    /// Samples settled so far, by outcome. `made` is the sum of the others.
    pub settled: RunBook,
    /// Items handed out so far.
    pub items: u64,
    /// State of the stateful stage, if it saves that.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kept: Kept,
}

/// State that the stateful stage of a run has saved, and what it had made of later ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// State of the stage behind all samples that are settled; empty if it is as new.
    #[serde(with = "base64_text")]
    pub state: Vec<u8>,
    /// Samples made from later states that were handed out, by their hashes: those of each call of the stage that made samples, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handed: Vec<Vec<Hash>>,
}

/// Bytes as text.
mod base64_text {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        BASE64_STANDARD.decode(String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// Positions of an epoch that a rank has settled, by their numbers among those dealt to the rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochState {
    /// Number of the pass.
    pub epoch: u32,
    /// Number below which all positions are settled.
    pub frontier: u64,
    /// Settled numbers above the frontier, as first number and count, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settled: Vec<(u64, u64)>,
    /// Number of positions dealt to the rank, if the source has given all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// Settled samples of positions that have several and are not settled, by number; the samples by the hash of their fan-outs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub children: BTreeMap<u64, Vec<Hash>>,
}

/// Hash as hexadecimal digits: readers of JSON may round large numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, std::hash::Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hash(pub u64);

/// Reason why a state cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    /// The text is no state.
    #[error("this is not a state that Penstock has written: {0}")]
    Malformed(String),
    /// The state has another form.
    #[error(
        "the state has version {0}, and this program reads version {VERSION}; use the program that wrote it"
    )]
    Version(u32),
    /// The state contradicts itself.
    #[error("the state is damaged: {0}")]
    Damaged(String),
    /// Parts of the pipeline or of the data set differ.
    #[error("the state belongs to another run: {}", .0.join(", "))]
    Differs(Vec<String>),
    /// The state lacks ranks.
    #[error(
        "the state has {} of {world}; merge the states of all ranks before they are dealt to another number of ranks",
        list(ranks)
    )]
    Ranks {
        /// Ranks in the state.
        ranks: Vec<u32>,
        /// Number of ranks that wrote it.
        world: NonZeroU32,
    },
    /// Two states have the same rank.
    #[error("two of the states belong to rank {0}; merge one state of each rank")]
    Twice(u32),
    /// A rank has settled an epoch that another rank has not.
    #[error(
        "the ranks are more than one epoch apart, from epoch {0} on; resume them with the same number of ranks"
    )]
    Apart(u32),
    /// A rank has ended an epoch whose number of positions is not known.
    #[error(
        "some ranks have ended epoch {0}, whose number of samples is not known; resume with the same number of ranks"
    )]
    Uncounted(u32),
    /// A rank's stateful stage has kept something.
    #[error(
        "the stateful stage of rank {0} has kept samples in its state, which no other rank can go on with; resume with the same number \
         of ranks, or with `force`, which leaves them out"
    )]
    Kept(u32),
    /// Too many separate positions remain.
    #[error(
        "more than {MAX_STRIDES} separate ranges of positions remain; resume with the same number of ranks"
    )]
    TooMany,
}

/// A state that is too large to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the state of the run has more than {0} bytes: too many samples are settled before earlier ones, or a stage keeps too much in its state"
)]
pub struct StateTooLarge(pub u64);

/// Buffer that refuses to grow beyond `most` bytes.
struct Within {
    text: Vec<u8>,
    most: u64,
}

impl Write for Within {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.text.len() + bytes.len()) as u64 > self.most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// True unless a source has different fields in both.
fn have_same_fields(one: &BTreeMap<String, DataFields>, other: &BTreeMap<String, DataFields>) -> bool {
    one.iter().all(|(name, fields)| other.get(name).is_none_or(|other| other == fields))
}

/// True unless both are known and differ.
fn agree<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one == other)
}

impl Hash {
    /// Hash of what `self` is the hash of, followed by these bytes (FNV-1a).
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        let hash =
            bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        Self(hash)
    }

    /// Hash of nothing.
    pub const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);
}

fn list(ranks: &[u32]) -> String {
    match ranks {
        [] => "none".to_owned(),
        [one] => format!("only rank {one}"),
        several => format!("only {} ranks", several.len()),
    }
}

impl From<Hash> for String {
    fn from(Hash(hash): Hash) -> Self {
        format!("{hash:x}")
    }
}

impl TryFrom<String> for Hash {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u64::from_str_radix(&text, 16).map(Self)
    }
}

impl Token {
    /// State of a run with this recipe and traversal that has settled nothing.
    pub fn new(recipe: BTreeMap<String, String>, settings: &TraversalSettings) -> Self {
        let shard = settings.shard.unwrap_or(ALONE);
        Self {
            version: VERSION,
            recipe,
            count: None,
            digest: None,
            blocks: None,
            fields: BTreeMap::new(),
            selection: SELECTION,
            limit: settings.limit,
            first_epoch: settings.first_epoch,
            world: shard.world,
            uneven: shard.uneven,
            rests: BTreeMap::new(),
            ranks: BTreeMap::new(),
            before: RunBook::default(),
            settings: BTreeMap::new(),
        }
    }

    /// The same positions of a pipeline with another recipe and traversal, or of other data.
    #[must_use]
    pub fn for_recipe(mut self, recipe: BTreeMap<String, String>, settings: &TraversalSettings) -> Self {
        for rank in self.ranks.values_mut() {
            // There may be more of them now.
            rank.epochs.iter_mut().for_each(|epoch| epoch.ended = None);
            rank.kept = Kept::default();
        }
        Self {
            first_epoch: self.first_epoch,
            world: self.world,
            uneven: self.uneven,
            rests: self.rests,
            ranks: self.ranks,
            before: self.before,
            settings: self.settings.clone(),
            ..Self::new(recipe, settings)
        }
    }

    /// The state of ranks that have settled all epochs up to `last`, whatever was left of them.
    #[must_use]
    pub fn ended(mut self, last: u32) -> Self {
        for rank in self.ranks.values_mut() {
            let top = rank.epochs.iter().find(|epoch| epoch.epoch == last).map_or(0, EpochState::top);
            rank.epochs = vec![EpochState { frontier: top, ended: Some(top), ..EpochState::begun(last) }];
            rank.kept = Kept::default();
        }
        self.rests = self.rests.split_off(&last);
        self
    }

    /// Reads a state that was written as JSON, and checks it.
    pub fn read(text: &[u8]) -> Result<Self, TokenFault> {
        if text.len() as u64 > MAX_TOKEN_BYTES {
            return Err(TokenFault::Malformed(format!("it has more than {MAX_TOKEN_BYTES} bytes")));
        }
        if let Ok(Version { version: Some(version) }) = serde_json::from_slice(text)
            && version != u64::from(VERSION)
        {
            return Err(TokenFault::Version(u32::try_from(version).unwrap_or(u32::MAX)));
        }
        let token: Self =
            serde_json::from_slice(text).map_err(|error| TokenFault::Malformed(error.to_string()))?;
        token.check()?;
        Ok(token)
    }

    /// JSON on one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a state is JSON")
    }

    /// The same with at most `most` bytes.
    pub fn to_json_within(&self, most: u64) -> Result<String, StateTooLarge> {
        let mut within = Within { text: Vec::new(), most };
        serde_json::to_writer(&mut within, self).map_err(|_| StateTooLarge(most))?;
        Ok(String::from_utf8(within.text).expect("JSON is text"))
    }

    /// Samples settled so far by all ranks in the state, and by runs with another number of ranks.
    pub fn settled(&self) -> RunBook {
        self.ranks.values().fold(self.before.clone(), |sum, rank| sum.plus(&rank.settled))
    }

    /// True for a state of an earlier version, in which other rules selected the keys and classes.
    pub fn is_selected_by_older_rules(&self) -> bool {
        self.selection == 0
    }

    /// Compares the pipeline with that of this state.
    pub fn check_recipe(&self, recipe: &BTreeMap<String, String>) -> Result<(), TokenFault> {
        let names = self.recipe.keys().chain(recipe.keys().filter(|name| !self.recipe.contains_key(*name)));
        let differ = names.filter(|name| self.recipe.get(*name) != recipe.get(*name));
        let differ: Vec<String> = differ.map(|name| format!("{name} differs")).take(10).collect();
        if differ.is_empty() { Ok(()) } else { Err(TokenFault::Differs(differ)) }
    }

    /// Merges the states of several ranks of one run into one. Fails if they belong to different runs.
    pub fn merge(states: impl IntoIterator<Item = Self>) -> Result<Self, TokenFault> {
        let mut states = states.into_iter();
        let first =
            states.next().ok_or_else(|| TokenFault::Malformed("there is no state to merge".to_owned()))?;
        let merged = states.try_fold(first, |mut merged, state| {
            let same = [
                ("the number of ranks", merged.world == state.world && merged.uneven == state.uneven),
                ("the first epoch", merged.first_epoch == state.first_epoch),
                ("what an earlier number of ranks has settled", merged.before == state.before),
                ("the number of samples in the source", agree(merged.count, state.count)),
                (
                    "the data of the source, or what damage has left of them,",
                    merged.blocks != state.blocks || agree(merged.digest, state.digest),
                ),
                ("what the fields were learnt to be", have_same_fields(&merged.fields, &state.fields)),
            ];
            let differ: Vec<String> = same
                .iter()
                .filter(|(_, is_same)| !is_same)
                .map(|(what, _)| format!("{what} differs"))
                .collect();
            if !differ.is_empty() {
                return Err(TokenFault::Differs(differ));
            }
            merged.check_recipe(&state.recipe)?;
            merged.count = merged.count.or(state.count);
            let is_longer =
                merged.blocks.is_some_and(|merged| state.blocks.is_none_or(|blocks| blocks > merged));
            if merged.digest.is_none() || state.digest.is_some() && is_longer {
                (merged.digest, merged.blocks) = (state.digest, state.blocks);
            }
            merged.fields.extend(state.fields);
            merged.selection = merged.selection.min(state.selection);
            for (epoch, rest) in state.rests {
                // A rank keeps the rest of an epoch only until it has settled it.
                if *merged.rests.entry(epoch).or_insert_with(|| rest.clone()) != rest {
                    return Err(TokenFault::Differs(vec![format!("what was left of epoch {epoch} differs")]));
                }
            }
            for (rank, state) in state.ranks {
                if merged.ranks.insert(rank, state).is_some() {
                    return Err(TokenFault::Twice(rank));
                }
            }
            Ok(merged)
        })?;
        merged.least_entries().map(|_| merged)
    }

    fn check(&self) -> Result<(), TokenFault> {
        let damaged = |what: String| Err(TokenFault::Damaged(what));
        if let Some(rank) = self.ranks.keys().find(|rank| **rank >= self.world.get()) {
            return damaged(format!("rank {rank} is not below {}", self.world));
        }
        if let Some((epoch, _)) = self.rests.iter().find(|(_, rest)| !rest.is_sound()) {
            return damaged(format!("the remaining positions of epoch {epoch} are no ranges"));
        }
        for (rank, state) in &self.ranks {
            let epochs =
                state.epochs.windows(2).all(|pair| pair[0].epoch.checked_add(1) == Some(pair[1].epoch));
            if !epochs || !state.epochs.iter().all(EpochState::is_sound) {
                return damaged(format!("the positions of rank {rank} are not in order"));
            }
            if let Some(first) = state.epochs.first().filter(|first| first.epoch < self.first_epoch) {
                let (epoch, begin) = (first.epoch, self.first_epoch);
                return damaged(format!(
                    "rank {rank} has begun epoch {epoch}, and the run began with {begin}"
                ));
            }
            if let Some(last) = state.epochs.last().filter(|last| last.epoch == u32::MAX) {
                return damaged(format!(
                    "rank {rank} has begun epoch {}, behind which none can follow",
                    last.epoch
                ));
            }
        }
        let books = self.ranks.values().map(|rank| &rank.settled).chain([&self.before]);
        if let Some(book) = books.into_iter().find(|book| !book.balances()) {
            return damaged(format!("{} samples are not the sum of their outcomes", book.made));
        }
        let made = self.settled().made;
        if made > MOST_SETTLED {
            return damaged(format!("{made} settled samples are more than any run makes"));
        }
        self.least_entries().map(drop)
    }
}

impl EpochState {
    /// An epoch of which nothing is settled.
    pub fn begun(epoch: u32) -> Self {
        Self { epoch, ..Self::default() }
    }

    /// True if the rank has nothing more to do in this epoch.
    pub fn is_settled(&self) -> bool {
        self.ended == Some(self.frontier)
    }

    /// Number from which on no position is settled or has settled samples.
    fn top(&self) -> u64 {
        let settled = self.settled.last().map_or(self.frontier, |(first, count)| first + count);
        let children = self.children.last_key_value().map_or(0, |(number, _)| number + 1);
        self.ended.unwrap_or(settled.max(children))
    }

    /// Unsettled numbers below [`Self::top`], as first number and count.
    fn gaps(&self) -> Vec<(u64, u64)> {
        let ends =
            std::iter::once(self.frontier).chain(self.settled.iter().map(|(first, count)| first + count));
        let starts = self.settled.iter().map(|(first, _)| *first).chain([self.top()]);
        ends.zip(starts).filter(|(end, start)| end < start).map(|(end, start)| (end, start - end)).collect()
    }

    fn is_sound(&self) -> bool {
        let mut end = self.frontier;
        let in_order = self.settled.iter().all(|(first, count)| {
            let is_behind = *first > end && *count > 0;
            end = first.checked_add(*count).unwrap_or(u64::MAX);
            is_behind && end < u64::MAX
        });
        let ended = self.ended.is_none_or(|ended| end <= ended);
        let last = self.ended.unwrap_or(u64::MAX);
        in_order
            && ended
            && end < u64::MAX
            && self.children.keys().all(|number| *number >= self.frontier && *number < last)
    }
}

#[cfg(test)]
mod tests;
