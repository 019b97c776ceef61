//! Proposes changes of concurrency and queues that a prediction finds faster.

use penstock_types::plan::{LiveSetting, Plan};
use penstock_types::verdict::SlotUse;

use super::TuneLimits;

/// Smallest gain of one proposal over another that counts, since predictions are no more exact.
const GAIN: f64 = 0.01;
/// Share of the rate by which a smaller setting may be slower and still count as equally fast.
const SLACK: f64 = 0.01;
/// Factors of the current rate for which the stages get enough concurrency.
const FACTORS: [f64; 11] = [1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0];
/// Share by which concurrency exceeds the slots that the mean rate needs, since times of tasks differ.
const SPARE: f64 = 1.1;
/// Number of factors in a row that may bring no gain: a stage may gain only when others are faster, too.
const FRUITLESS: u32 = 2;
/// Factors by which all queues are tried deeper.
const DEEPER: [u32; 3] = [2, 4, 8];

/// Maximum number of predictions with which changes are reduced; those that are left over stay as they are.
const TRIMS: u32 = 300;
/// Maximum number of changes that are tried one after another, those of the stages in use most first.
pub(super) const MOST_CHANGES: usize = 16;

/// Predicts the rate of a plan; `None` if it cannot be predicted.
pub(crate) type Rate<'a> = dyn FnMut(&Plan) -> Option<f64> + 'a;

/// Changes that are faster together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Proposed {
    /// Settings with their new values, that of the limit first.
    pub(crate) changes: Vec<(LiveSetting, u32)>,
    /// Ratio of the predicted rate to that without changes, after each change.
    pub(crate) gains: Vec<f64>,
}

/// Searches for the cheapest changes with about the highest predicted rate. `may_change` is false for settings that stay.
pub(crate) fn propose(
    plan: &Plan,
    slots: &[SlotUse],
    limits: &TuneLimits,
    may_change: &dyn Fn(LiveSetting) -> bool,
    rate: &mut Rate<'_>,
) -> Option<Proposed> {
    let now = rate(plan).filter(|now| *now > 0.0)?;
    let (mut best, mut fruitless) = ((plan.clone(), now), 0);
    for factor in FACTORS {
        let wider = widened(plan, slots, factor, limits, may_change);
        if wider == *plan || wider == best.0 {
            continue;
        }
        if !limits.allow(&wider) || fruitless == FRUITLESS {
            break;
        }
        let predicted = rate(&wider)?;
        if predicted > best.1 * (1.0 + GAIN) {
            (best, fruitless) = ((wider, predicted), 0);
        } else {
            fruitless += 1;
        }
    }
    for factor in DEEPER {
        let deeper = deepened(&best.0, plan, factor, limits, may_change);
        if deeper == best.0 {
            continue;
        }
        let predicted = rate(&deeper)?;
        if predicted <= best.1 * (1.0 + GAIN) {
            break;
        }
        best = (deeper, predicted);
    }
    let (best, _) = trimmed(best, plan, rate)?;
    ordered(plan, &best, slots, now, rate)
}

/// The plan with enough concurrency for `factor` times the current rate.
fn widened(
    plan: &Plan,
    slots: &[SlotUse],
    factor: f64,
    limits: &TuneLimits,
    may_change: &dyn Fn(LiveSetting) -> bool,
) -> Plan {
    let mut wider = plan.clone();
    for place in 0..plan.stages.len() {
        let setting = LiveSetting::Concurrency(place);
        let stage = &plan.stages[place];
        let used = slots.iter().find(|slots| slots.stage == stage.id.to_string());
        let (Some(used), true) = (used, stage.kind.rules().may_grow() && may_change(setting)) else {
            continue;
        };
        let is_on_thread = stage.kind.rules().work().is_on_thread();
        let most = limits.most_tasks(is_on_thread);
        let needed = (held(used) * factor * SPARE).ceil() as u32;
        let tasks = needed.min(most).max(stage.concurrency.get());
        setting.set(&mut wider, tasks);
    }
    wider
}

/// Slots that the ops of a stage hold, and the results that wait for earlier ones.
fn held(used: &SlotUse) -> f64 {
    used.busy + used.order_wait * (1.0 - used.blocked.min(1.0))
}

/// `plan` with queues `factor` times as deep as in `start`.
fn deepened(
    plan: &Plan,
    start: &Plan,
    factor: u32,
    limits: &TuneLimits,
    may_change: &dyn Fn(LiveSetting) -> bool,
) -> Plan {
    let mut deeper = plan.clone();
    let queues = LiveSetting::all(plan).filter(|setting| matches!(setting, LiveSetting::Queue(_)));
    for setting in queues.filter(|setting| may_change(*setting)) {
        let now = setting.value(start).unwrap_or(1);
        setting.set(&mut deeper, now.saturating_mul(factor).min(limits.queue).max(now));
    }
    deeper
}

/// Reverts or reduces every change that the rate does not need.
fn trimmed((mut best, most): (Plan, f64), start: &Plan, rate: &mut Rate<'_>) -> Option<(Plan, f64)> {
    let enough = most * (1.0 - SLACK);
    let mut left = TRIMS;
    // Queues first: they take memory, and seldom matter.
    let mut settings: Vec<_> = LiveSetting::all(start).collect();
    settings.sort_by_key(|setting| matches!(setting, LiveSetting::Concurrency(_)));
    for setting in settings {
        let (Some(mut low), Some(mut high)) = (setting.value(start), setting.value(&best)) else { continue };
        while low < high && left > 0 {
            left -= 1;
            // Most changes are not needed at all, so the first attempt is without.
            let middle = if Some(low) == setting.value(start) { low } else { low.midpoint(high) };
            let mut plan = best.clone();
            setting.set(&mut plan, middle);
            if rate(&plan)? >= enough {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        setting.set(&mut best, high);
    }
    Some((best, enough))
}

/// The changes from `start` to `best`, and their predicted gains one after another.
fn ordered(start: &Plan, best: &Plan, slots: &[SlotUse], now: f64, rate: &mut Rate<'_>) -> Option<Proposed> {
    let in_use = |setting: &LiveSetting| match setting {
        LiveSetting::Concurrency(place) => {
            let id = start.stages[*place].id.to_string();
            let used = slots.iter().find(|slots| slots.stage == id);
            used.map_or(0.0, |used| held(used) / f64::from(used.concurrency.max(1)))
        }
        _ => -1.0,
    };
    let mut changes: Vec<_> = LiveSetting::all(start)
        .filter_map(|setting| Some((setting, setting.value(best)?)))
        .filter(|(setting, value)| setting.value(start) != Some(*value))
        .collect();
    changes.sort_by(|(one, _), (other, _)| in_use(other).total_cmp(&in_use(one)));
    changes.truncate(MOST_CHANGES);
    let mut gains = Vec::with_capacity(changes.len());
    let mut plan = start.clone();
    for (setting, value) in &changes {
        setting.set(&mut plan, *value);
        gains.push(rate(&plan)? / now);
    }
    (!changes.is_empty()).then_some(Proposed { changes, gains })
}
