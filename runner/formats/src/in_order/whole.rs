//! Samples that are whole once they are read.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_engine::chunk::{Chunk, Outcome};
use penstock_engine::item::{Origin, Sample};
use penstock_engine::ports::SourceFault;
use penstock_engine::typed::{FieldRules, learn};
use penstock_storage::RangedObject;
use penstock_types::data_set::{DataFields, LEARN_BYTES, LEARN_SAMPLES, Learner};

use super::{Done, InOrder, Pass, ShardStream, Unvisited};
use crate::damage::Damage;

/// A sample, with its outcome if it is damaged.
pub(crate) type Made = (Sample, Option<Outcome>);

pub struct WholeSample {
    pub(crate) made: Made,
    /// See [`Unvisited::unmarked`].
    pub(crate) unmarked_fields: Option<Vec<Arc<str>>>,
}

/// Starts to read a shard whose samples are whole once they are read.
pub(crate) type OpenShard =
    Box<dyn Fn(RangedObject, u64, Damage) -> Box<dyn InOrder<WholeSample>> + Send + Sync>;

impl Unvisited for WholeSample {
    type Format = OpenShard;

    const IN_BLOCKS: bool = false;

    fn open(
        open: &OpenShard,
        shard: RangedObject,
        ahead_bytes: u64,
        damage: Damage,
    ) -> Box<dyn InOrder<Self>> {
        open(shard, ahead_bytes, damage)
    }

    fn bytes(&self) -> u64 {
        self.made.0.memory_bytes()
    }

    fn set_origin(&mut self, origin: Origin) {
        self.made.0.origin = origin;
    }

    fn unmarked(&self) -> Option<(&str, &[Arc<str>])> {
        self.unmarked_fields.as_deref().map(|fields| (&*self.made.0.key, fields))
    }

    fn learn<'a>(
        stream: &'a ShardStream<Self>,
        pass: &'a mut Pass<Self>,
    ) -> BoxFuture<'a, Result<DataFields, SourceFault>> {
        async move {
            let (mut learner, mut bytes) = (Learner::default(), 0);
            let mut see = |sample: &Sample| {
                learn(&mut learner, sample).map_err(|fault| stream.typing.cures.fault(&fault))
            };
            let most = stream.settings.limit.map_or(LEARN_SAMPLES, |limit| limit.min(LEARN_SAMPLES));
            while pass.read < most && bytes < LEARN_BYTES && !pass.is_counted {
                let before = pass.read;
                if let Err(fault) = stream.read(pass, true).await {
                    if pass.kept.is_empty() {
                        return Err(fault);
                    }
                    // It is told behind the samples before it.
                    pass.read_fault = Some(fault);
                    break;
                }
                if let Some((_, Self { made: (sample, None), unmarked_fields })) = pass.kept.back()
                    && pass.read > before
                {
                    bytes += sample.bytes();
                    if unmarked_fields.is_none() {
                        see(sample)?;
                    }
                }
            }
            // What may be cut teaches only if all may be.
            if pass.unmarked.len() == pass.kept.len() {
                for (_, Self { made: (sample, outcome), .. }) in &pass.kept {
                    if outcome.is_none() {
                        see(sample)?;
                    }
                }
            }
            let fields = learner.finish(pass.is_counted && !stream.is_open);
            Ok(DataFields { is_open: stream.is_open, ..fields })
        }
        .boxed()
    }

    fn make(stream: &ShardStream<Self>, visits: Vec<Self>) -> BoxFuture<'_, Result<Done<Self>, SourceFault>> {
        let mut chunk: Chunk = visits.into_iter().map(|sample| sample.made).collect();
        let typed = |rules: &Arc<FieldRules>| chunk.try_change(|sample| rules.apply(sample)).err();
        let fault = stream.rules.as_ref().and_then(typed);
        std::future::ready(Ok(Done { chunk, left: Vec::new(), fault })).boxed()
    }
}
