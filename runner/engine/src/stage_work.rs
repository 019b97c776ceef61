use penstock_types::plan::{Moving, StageKind};

/// Work that a stage performs on items, where `Op` is an op that it applies to them: of a run, of a prediction, or the rules by
/// which a schedule calls it.
#[derive(Clone, Copy, Debug)]
pub enum StageWork<Op> {
    Op(Op),
    Moving(Moving),
}

impl<Op> StageWork<Op> {
    /// Work of a stage that only moves samples; `None` for a stage with an op.
    pub fn moving(kind: &StageKind) -> Option<Self> {
        kind.rules().moving().map(Self::Moving)
    }

    pub fn op(&self) -> Option<&Op> {
        match self {
            Self::Op(op) => Some(op),
            Self::Moving(_) => None,
        }
    }

    pub(crate) fn map<Other>(&self, other: impl FnOnce(&Op) -> Other) -> StageWork<Other> {
        match self {
            Self::Op(op) => StageWork::Op(other(op)),
            Self::Moving(moving) => StageWork::Moving(*moving),
        }
    }
}
