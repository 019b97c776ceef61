use penstock_types::plan::{AggregatePlan, StageKind};

/// Work that a stage performs on items, where `Op` is an op that it applies to them: of a run, of a prediction, or the rules by
/// which a schedule calls it.
#[derive(Clone, Copy, Debug)]
pub enum StageWork<Op> {
    Op(Op),
    Aggregate(AggregatePlan),
    Disaggregate,
    /// Takes the samples of one path of the route with this number.
    Gate {
        route: usize,
    },
    /// Joins the paths of the route with this number.
    Join {
        route: usize,
    },
}

impl<Op> StageWork<Op> {
    /// Work of a stage that only moves samples; `None` for a stage with an op.
    pub fn moving(kind: &StageKind) -> Option<Self> {
        match kind {
            StageKind::Aggregate(plan) => Some(Self::Aggregate(*plan)),
            StageKind::Disaggregate => Some(Self::Disaggregate),
            StageKind::Path(path) => Some(Self::Gate { route: path.route }),
            StageKind::Route(route) => Some(Self::Join { route: route.route }),
            StageKind::Fetch(_)
            | StageKind::Wasm(_)
            | StageKind::Collate(_)
            | StageKind::Transfer(_)
            | StageKind::Sleep(_) => None,
        }
    }

    pub fn op(&self) -> Option<&Op> {
        match self {
            Self::Op(op) => Some(op),
            Self::Aggregate(_) | Self::Disaggregate | Self::Gate { .. } | Self::Join { .. } => None,
        }
    }

    pub(crate) fn map<Other>(&self, other: impl FnOnce(&Op) -> Other) -> StageWork<Other> {
        match self {
            Self::Op(op) => StageWork::Op(other(op)),
            Self::Aggregate(plan) => StageWork::Aggregate(*plan),
            Self::Disaggregate => StageWork::Disaggregate,
            Self::Gate { route } => StageWork::Gate { route: *route },
            Self::Join { route } => StageWork::Join { route: *route },
        }
    }
}
