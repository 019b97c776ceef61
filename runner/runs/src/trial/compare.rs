use penstock_types::run::FailureClass;

use super::Pass;
use super::report::{CallTrial, Difference, DifferenceCause, MadeSample, SampleTrial};

/// The samples that did not become the same in all passes, each with the first difference found.
pub(super) fn compare(passes: &[Pass]) -> Vec<Difference> {
    let Some(baseline) = passes.iter().find(|pass| pass.is_fresh) else { return Vec::new() };
    let mut differences: Vec<Difference> = Vec::new();
    // What differs between fresh instances differs by chance, whatever used ones do.
    for is_fresh in [true, false] {
        let cause = if is_fresh { DifferenceCause::Chance } else { DifferenceCause::State };
        for pass in passes.iter().filter(|pass| pass.is_fresh == is_fresh) {
            for (fresh, other) in samples(baseline).zip(samples(pass)) {
                if differences.iter().any(|found| found.key == fresh.key) {
                    continue;
                }
                let found = difference(fresh, other);
                differences.extend(found.map(|(what, fresh_gave, other_gave)| Difference {
                    key: fresh.key.clone(),
                    cause,
                    what,
                    fresh: fresh_gave,
                    other: other_gave,
                }));
            }
        }
    }
    differences
}

fn samples(pass: &Pass) -> impl Iterator<Item = &SampleTrial> {
    pass.calls.iter().chain(&pass.finish).flat_map(|call: &CallTrial| &call.samples)
}

/// What differs, and what the two times gave.
fn difference(one: &SampleTrial, other: &SampleTrial) -> Option<(String, String, String)> {
    let told = |what: &str, one: &str, other: &str| Some((what.to_owned(), one.to_owned(), other.to_owned()));
    if one.outcome != other.outcome {
        return told("what becomes of it", one.outcome.name(), other.outcome.name());
    }
    if let (Some(one), Some(other)) = (&one.failure, &other.failure) {
        // What a trap says may name how much memory there was before.
        if one.class != other.class || (one.class == FailureClass::Data && one.message != other.message) {
            return told("why it fails", &one.message, &other.message);
        }
        return None;
    }
    if one.made.len() != other.made.len() {
        return told("how many samples come out", &one.made.len().to_string(), &other.made.len().to_string());
    }
    one.made.iter().zip(&other.made).find_map(|(one, other)| difference_of_made(one, other))
}

fn difference_of_made(one: &MadeSample, other: &MadeSample) -> Option<(String, String, String)> {
    if one.key != other.key {
        return Some(("the key".to_owned(), one.key.clone(), other.key.clone()));
    }
    let names = |made: &MadeSample| made.fields.iter().map(|field| field.name.clone()).collect::<Vec<_>>();
    if names(one) != names(other) {
        return Some(("which fields come out".to_owned(), names(one).join(", "), names(other).join(", ")));
    }
    let differs = one.fields.iter().zip(&other.fields).find(|(one, other)| one.digest != other.digest);
    differs.map(|(one, other)| (format!("field `{}`", one.name), one.digest.clone(), other.digest.clone()))
}
