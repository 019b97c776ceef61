//! Samples of several sources, drawn by their weights.

use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::join_all;
use penstock_types::data_set::DataFields;
use penstock_types::resume::Hash;
use penstock_types::traversal::{Draw, Mixture, MixtureFault, Order, Part, Pick, Stop, TraversalSettings};

use crate::lock::locked;
use crate::numbered::{Numbered, ReadFault, ReadSamples};
use crate::parts::SourcePart;
use crate::ports::SourceFault;
use crate::share::Share;

pub struct MixedPart {
    pub name: Arc<str>,
    pub samples: Arc<dyn Numbered>,
    pub weight: u32,
    /// Order within the source: seed, shuffle, window and limit; the rest does not apply.
    pub order: TraversalSettings,
}

/// Samples of several sources, numbered in the order in which an epoch draws them.
pub struct Mixed {
    parts: Vec<MixedPart>,
    /// First index of the samples of each source, over all passes of an epoch.
    starts: Vec<u64>,
    /// Number of passes over each source that an epoch begins.
    passes: Vec<u32>,
    count: u64,
    mixture: Mutex<Mixture>,
    /// Pass over each source that was read last.
    passed: Mutex<Vec<Option<Pass>>>,
    fields: Option<DataFields>,
}

#[derive(Clone)]
struct Pass {
    /// Number over all epochs.
    number: u32,
    order: Arc<Order>,
}

/// Samples of one source and pass in a chunk.
struct Group {
    part: usize,
    pass: u32,
    /// Position in the chunk, and number in the source.
    members: Vec<(usize, u64)>,
}

/// Fields of the samples of all sources of a mixture, which have these names.
pub fn fields_of(mut sources: Vec<(Arc<str>, DataFields)>) -> Result<DataFields, SourceFault> {
    sources.sort_by(|(one, _), (other, _)| one.cmp(other));
    DataFields::of_several(&sources)
        .map_err(|fault| SourceFault::new(format!("{fault}; give them one type"), None))
}

impl MixedPart {
    /// Number of samples in one pass.
    fn len(&self) -> u64 {
        self.order.limit.map_or(self.samples.count(), |limit| limit.min(self.samples.count()))
    }
}

impl Mixed {
    /// Mixes the sources. Fails if they cannot be mixed, such as if one of them has no samples.
    pub fn new(parts: Vec<MixedPart>, pick: Pick, stop: Stop, seed: u64) -> Result<Self, MixtureFault> {
        let sizes: Vec<Part> =
            parts.iter().map(|part| Part { len: part.len(), weight: part.weight }).collect();
        let mixture = Mixture::new(&sizes, pick, stop, seed)?;
        let passes: Vec<u32> = (0..parts.len()).map(|part| mixture.passes(part)).collect();
        let mut starts = vec![0_u64];
        for (part, passes) in parts.iter().zip(&passes) {
            let length = part.samples.count().saturating_mul(u64::from(*passes));
            starts.push(starts.last().copied().unwrap_or(0).saturating_add(length));
        }
        let passed = Mutex::new(vec![None; parts.len()]);
        Ok(Self {
            parts,
            starts,
            passes,
            count: mixture.len(),
            mixture: Mutex::new(mixture),
            passed,
            fields: None,
        })
    }

    /// The same with the fields of the samples of all sources.
    #[must_use]
    pub fn with_fields(self, fields: DataFields) -> Self {
        Self { fields: Some(fields), ..self }
    }

    fn groups(&self, positions: &[u64]) -> Vec<Group> {
        let mut mixture = locked(&self.mixture);
        let mut groups: Vec<Group> = Vec::new();
        for (place, position) in positions.iter().enumerate() {
            let Draw { part, pass, position } = mixture.at(*position);
            let group = groups.iter_mut().find(|group| group.part == part && group.pass == pass);
            let member = (place, position);
            match group {
                Some(group) => group.members.push(member),
                None => groups.push(Group { part, pass, members: vec![member] }),
            }
        }
        groups
    }

    /// Order of a source in a pass, which is numbered over all epochs.
    fn order(&self, part: usize, pass: u32) -> Arc<Order> {
        let mut passed = locked(&self.passed);
        match &passed[part] {
            Some(last) if last.number == pass => last.order.clone(),
            _ => {
                let MixedPart { samples, order, .. } = &self.parts[part];
                let order = Arc::new(Order::new(samples.count(), &samples.units(), order, pass));
                passed[part] = Some(Pass { number: pass, order: order.clone() });
                order
            }
        }
    }
}

/// Digest of digests; `None` if one is not known.
fn joined(mut digests: impl Iterator<Item = Option<Hash>>) -> Option<Hash> {
    digests.try_fold(Hash::EMPTY, |hash, digest| Some(hash.with(&digest?.0.to_le_bytes())))
}

impl Numbered for Mixed {
    fn count(&self) -> u64 {
        self.count
    }

    fn digest(&self) -> Option<Hash> {
        joined(self.parts.iter().map(|part| part.samples.digest()))
    }

    fn older_digest(&self) -> Option<Hash> {
        joined(self.parts.iter().map(|part| part.samples.older_digest()))
    }

    fn fields(&self) -> Option<DataFields> {
        self.fields.clone()
    }

    fn parts(&self) -> Vec<SourcePart> {
        let part = |(part, start): (&MixedPart, &u64)| {
            let MixedPart { name, weight, .. } = part;
            SourcePart { name: name.clone(), weight: *weight, start: *start }
        };
        self.parts.iter().zip(&self.starts).map(part).collect()
    }

    fn mean_bytes(&self) -> u64 {
        let weights: u64 = self.parts.iter().map(|part| u64::from(part.weight)).sum();
        let bytes = self.parts.iter().map(|part| part.samples.mean_bytes() * u64::from(part.weight));
        bytes.sum::<u64>() / weights.max(1)
    }

    fn read(self: Arc<Self>, epoch: u32, indexes: Vec<u64>, share: Share) -> ReadSamples {
        async move {
            let reads = self.groups(&indexes).into_iter().map(|mut group| {
                let (part, passes) = (&self.parts[group.part], self.passes[group.part]);
                let pass = epoch.wrapping_mul(passes).wrapping_add(group.pass);
                let order = self.order(group.part, pass);
                group.members.iter_mut().for_each(|(_, index)| *index = order.at(*index));
                let numbers = group.members.iter().map(|(_, index)| *index).collect();
                let start = self.starts[group.part] + u64::from(group.pass) * part.samples.count();
                let is_first = group.members.first().is_some_and(|(place, _)| *place == 0);
                let share = if is_first { share.clone() } else { share.behind_first() };
                let read = part.samples.clone().read(pass, numbers, share);
                async move { (group.members, start, read.await) }
            });
            let mut chunk = Vec::with_capacity(indexes.len());
            // The first place without a sample, with the reason if there is one.
            let mut end: (usize, Option<SourceFault>) = (indexes.len(), None);
            for (members, start, read) in join_all(reads).await {
                let (samples, fault) = match read {
                    Ok(samples) => (samples, None),
                    Err(ReadFault { before, fault }) => (before, Some(fault)),
                };
                if let Some((place, _)) = members.get(samples.len())
                    && *place < end.0
                {
                    end = (*place, fault);
                }
                for ((place, _), (mut sample, outcome)) in members.into_iter().zip(samples.into_outcomes()) {
                    sample.origin.epoch = epoch;
                    sample.origin.index += start;
                    chunk.push((place, (sample, outcome)));
                }
            }
            let (end, fault) = end;
            chunk.retain(|(place, _)| *place < end);
            chunk.sort_unstable_by_key(|(place, _)| *place);
            let chunk = chunk.into_iter().map(|(_, sample)| sample).collect();
            match fault {
                None => Ok(chunk),
                Some(fault) => Err(ReadFault { before: chunk, fault }),
            }
        }
        .boxed()
    }

    fn kept_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.samples.kept_bytes()).sum()
    }
}
