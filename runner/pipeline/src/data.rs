//! Facts about the data of a pipeline that are found without a run.

use penstock_engine::ports::SourceFault;
use penstock_types::data_set::DataFields;

use crate::found::Found;
use crate::prepare::Prepared;

impl Prepared {
    /// Reads the fields of the source's samples, with their types: opens the source and reads its first samples. `None` if the source
    /// does not know them.
    pub async fn fields(&self) -> Result<Option<DataFields>, SourceFault> {
        let own = self.apart();
        own.source().next().await?;
        Ok(own.own_fields())
    }

    /// Pipeline over the same data whose source finds things for itself, from the beginning.
    pub(crate) fn apart(&self) -> Self {
        Self { found: Found::default(), start: None, ..self.clone() }
    }

    pub(crate) fn own_fields(&self) -> Option<DataFields> {
        self.found.notes(&self.plan.source.id.to_string()).fields().map(|fields| (*fields).clone())
    }

    /// Numbers of samples that this rank visits in the epochs that are left, each with the number of epochs that have it. Requires a
    /// listing of all keys or a pass over all records. `None` if the epochs never end.
    pub async fn counts(&self) -> Result<Option<Vec<(u64, u64)>>, SourceFault> {
        if self.plan.source.traversal.epochs.is_none() {
            return Ok(None);
        }
        Ok(self.traversal(self.entries().await?)?.lens())
    }

    /// Number of samples of the source, whoever visits them.
    async fn entries(&self) -> Result<u64, SourceFault> {
        let mut whole = self.apart();
        let traversal = &mut whole.plan.source.traversal;
        traversal.epochs = Some(std::num::NonZeroU32::MIN);
        traversal.first_epoch = 0;
        traversal.shard = None;
        traversal.limit = None;
        Ok(whole.count().await?.expect("one epoch ends"))
    }
}
