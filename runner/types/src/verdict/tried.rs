use super::Verdict;
use crate::amount::rate;
use crate::fault::Pointer;
use crate::tune::{ChangeOutcome, SettingChange};

/// Smallest gain of a change that counts as help.
const GAIN: f64 = 0.03;
/// Maximum number of changes that a verdict names.
const MOST: usize = 5;

impl Verdict {
    /// Takes into account the settings that were raised in the run, up to the end of the verdict's interval, and did not help: they are
    /// evidence, and advice that is made of them alone goes.
    #[must_use]
    pub fn with_tried(mut self, changes: &[SettingChange]) -> Self {
        let in_vain = in_vain(changes, self.to_s);
        self.advice.retain(|advice| {
            let is_tried = |pointer: &Pointer| in_vain.iter().any(|change| change.pointer == *pointer);
            advice.set.is_empty() || !advice.set.iter().all(|setting| is_tried(&setting.pointer))
        });
        self.evidence.extend(in_vain.iter().rev().take(MOST).map(|change| {
            let SettingChange { at_s, pointer, from, to, before, measured, .. } = change;
            let rates = before
                .zip(*measured)
                .map(|(before, measured)| format!(", {} -> {} items/s", rate(before), rate(measured)));
            let rates = rates.unwrap_or_default();
            format!("more of `{pointer}` was tried at {at_s:.1} s and did not help: {from} -> {to}{rates}")
        }));
        self
    }
}

/// The last change of each setting, if it raised the setting, was over at `to_s`, and did not help.
fn in_vain(changes: &[SettingChange], to_s: f64) -> Vec<&SettingChange> {
    let mut last: Vec<&SettingChange> = Vec::new();
    let measured = |change: &&SettingChange| change.until_s.is_some_and(|until_s| until_s <= to_s);
    for change in changes.iter().filter(measured) {
        last.retain(|earlier| earlier.pointer != change.pointer);
        last.push(change);
    }
    last.retain(|change| {
        let helped = change
            .before
            .zip(change.measured)
            .is_none_or(|(before, measured)| measured > before * (1.0 + GAIN));
        // One that was undone for another reason, such as short memory, may have helped.
        let is_over = matches!(change.outcome, ChangeOutcome::Undone | ChangeOutcome::Set);
        change.to > change.from && is_over && !helped
    });
    last
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn change(
        pointer: &str,
        from: u32,
        to: u32,
        rates: (f64, f64),
        outcome: &str,
        until_s: Option<f64>,
    ) -> Value {
        json!({
            "at_s": 12.34, "until_s": until_s, "pointer": pointer, "from": from, "to": to, "evidence": "", "before": rates.0,
            "predicted": null, "measured": rates.1, "outcome": outcome,
        })
    }

    fn verdict() -> Verdict {
        let advice = |places: &[&str]| {
            let set: Vec<_> = places.iter().map(|place| json!({ "pointer": place, "value": 8 })).collect();
            json!({ "goal": "rate", "text": "More.", "set": set })
        };
        serde_json::from_value(json!({
            "kind": "stage", "answer": "yes", "stage": "1:a", "sentence": "It is 1:a.", "evidence": ["Busy."],
            "advice": [advice(&["/a"]), advice(&["/a", "/b"]), advice(&["/b"]), advice(&[])],
            "from_s": 1.0, "to_s": 20.0, "rate": 10.0, "demand": null, "consumer_wait": 0.9, "slots": [], "threads": null,
        }))
        .unwrap()
    }

    fn learnt(changes: Vec<Value>) -> (Vec<usize>, Vec<String>) {
        let changes: Vec<SettingChange> =
            changes.into_iter().map(|change| serde_json::from_value(change).unwrap()).collect();
        let found = verdict().with_tried(&changes);
        (found.advice.iter().map(|advice| advice.set.len()).collect(), found.evidence)
    }

    #[test]
    fn what_was_tried_in_vain_is_evidence_and_no_advice() {
        let (advice, evidence) = learnt(vec![change("/a", 2, 4, (140.0, 139.0), "undone", Some(15.0))]);
        assert_eq!(advice, [2, 1, 0], "advice with another setting stays");
        let told = "more of `/a` was tried at 12.3 s and did not help: 2 -> 4, 140 -> 139 items/s";
        assert_eq!(evidence, ["Busy.", told]);
    }

    #[test]
    fn only_measured_rises_without_a_gain_up_to_then_count() {
        for harmless in [
            change("/a", 4, 2, (140.0, 139.0), "undone", Some(15.0)),
            change("/a", 2, 4, (140.0, 139.0), "undone", Some(21.0)),
            change("/a", 2, 4, (140.0, 139.0), "set", None),
            change("/a", 2, 4, (140.0, 150.0), "set", Some(15.0)),
            change("/a", 2, 4, (140.0, 150.0), "undone", Some(15.0)),
            change("/a", 2, 4, (140.0, 150.0), "kept", Some(15.0)),
        ] {
            assert_eq!(learnt(vec![harmless]), (vec![1, 2, 1, 0], vec!["Busy.".to_owned()]));
        }
        let set = change("/a", 2, 4, (140.0, 141.0), "set", Some(15.0));
        assert_eq!(learnt(vec![set.clone()]).0, [2, 1, 0]);
        let lowered = change("/a", 4, 2, (141.0, 141.0), "set", Some(16.0));
        assert_eq!(learnt(vec![set, lowered]).0, [1, 2, 1, 0], "a later change counts instead");
    }

    #[test]
    fn a_setting_has_the_value_of_the_changes_before() {
        let change: SettingChange =
            serde_json::from_value(change("/a", 2, 4, (1.0, 1.0), "undone", Some(15.0))).unwrap();
        assert_eq!([1.0, 13.0, 15.0].map(|at_s| change.value_at(at_s)), [None, Some(4), Some(2)]);
        assert_eq!(change.pointer, Pointer::ROOT.key("a"));
    }
}
