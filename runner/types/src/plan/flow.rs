//! Units and amounts of the items that pass between two stages.

/// Items that pass through a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Unit of the items.
    pub unit: Unit,
    /// Number of samples in a full item.
    pub samples: u64,
    /// Samples and items of one epoch when no sample fails, is dropped or fans out; `None` when they are not known.
    pub epoch: Option<Epoch>,
}

/// Unit of the items in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Single samples, not collected into batches.
    Samples,
    /// Batches of samples whose fields are not stacked.
    Batches,
    /// Batches whose fields are stacked.
    Collated,
}

/// Number of samples and items in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Number of samples in the epoch.
    pub samples: u64,
    /// Number of items that contain these samples.
    pub items: u64,
}

impl Unit {
    /// Plural name of the unit for messages and figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Batches => "batches",
            Self::Collated => "collated batches",
        }
    }
}

impl Flow {
    /// Flow behind a source that produces `samples` samples in one epoch; `None` means that the number is unknown.
    pub fn of_source(samples: Option<u64>) -> Self {
        let epoch = samples.map(|samples| Epoch { samples, items: samples });
        Self { unit: Unit::Samples, samples: 1, epoch }
    }
}
