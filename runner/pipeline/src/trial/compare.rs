use penstock_types::run::FailureClass;

use super::report::{CallTrial, Difference, DifferenceCause, MadeSample, Pass, SampleTrial};

/// Lists the samples whose results differ between passes, each with the first difference.
pub(super) fn compare(passes: &[Pass]) -> Vec<Difference> {
    let Some(baseline) = passes.iter().find(|pass| pass.is_fresh) else { return Vec::new() };
    // Samples are identified by position, since keys may repeat.
    let mut differences: Vec<(usize, Difference)> = Vec::new();
    // New instances are compared first: a difference between them is random, even if used instances differ, too.
    for is_fresh in [true, false] {
        let cause = if is_fresh { DifferenceCause::Chance } else { DifferenceCause::State };
        for pass in passes.iter().filter(|pass| pass.is_fresh == is_fresh) {
            for (place, (fresh, other)) in samples(baseline).zip(samples(pass)).enumerate() {
                if differences.iter().any(|(found, _)| *found == place) {
                    continue;
                }
                let found = difference(fresh, other);
                differences.extend(found.map(|(what, fresh_gave, other_gave)| {
                    let key = fresh.key.clone();
                    (place, Difference { key, cause, what, fresh: fresh_gave, other: other_gave })
                }));
            }
        }
    }
    differences.into_iter().map(|(_, difference)| difference).collect()
}

fn samples(pass: &Pass) -> impl Iterator<Item = &SampleTrial> {
    pass.calls.iter().chain(&pass.finish).flat_map(|call: &CallTrial| &call.samples)
}

/// First difference between two results, with both values.
fn difference(one: &SampleTrial, other: &SampleTrial) -> Option<(String, String, String)> {
    let told = |what: &str, one: &str, other: &str| Some((what.to_owned(), one.to_owned(), other.to_owned()));
    if one.outcome != other.outcome {
        return told("the outcome", one.outcome.name(), other.outcome.name());
    }
    if let (Some(one), Some(other)) = (&one.failure, &other.failure) {
        // The message of a trap may contain the memory size, which depends on earlier calls.
        if one.class != other.class || (one.class == FailureClass::Data && one.message != other.message) {
            return told("the failure", &one.message, &other.message);
        }
        return None;
    }
    if one.made.len() != other.made.len() {
        return told("the number of samples", &one.made.len().to_string(), &other.made.len().to_string());
    }
    one.made.iter().zip(&other.made).find_map(|(one, other)| difference_of_made(one, other))
}

fn difference_of_made(one: &MadeSample, other: &MadeSample) -> Option<(String, String, String)> {
    if one.key != other.key {
        return Some(("the key".to_owned(), one.key.clone(), other.key.clone()));
    }
    let names = |made: &MadeSample| made.fields.iter().map(|field| field.name.clone()).collect::<Vec<_>>();
    if names(one) != names(other) {
        return Some(("the set of fields".to_owned(), names(one).join(", "), names(other).join(", ")));
    }
    let differs = one.fields.iter().zip(&other.fields).find(|(one, other)| one.digest != other.digest);
    differs.map(|(one, other)| (format!("field `{}`", one.name), one.digest.clone(), other.digest.clone()))
}

#[cfg(test)]
mod tests {
    use super::super::report::{Failure, Outcome};
    use super::*;

    fn sample(key: &str, message: &str) -> SampleTrial {
        let failure = Failure { class: FailureClass::Data, message: message.to_owned(), held_lost: 0 };
        let (outcome, failure) = (Outcome::Failed, Some(failure));
        SampleTrial { key: key.to_owned(), outcome, failure, bytes_in: 0, bytes_out: 0, made: Vec::new() }
    }

    fn pass(messages: [&str; 2], is_fresh: bool) -> Pass {
        let samples = messages.map(|message| sample("same", message)).into();
        let call = CallTrial { samples, cpu_s: 0.0, wall_s: 0.0, memory_bytes: 0 };
        Pass { calls: vec![call], is_fresh, ..Pass::default() }
    }

    #[test]
    fn samples_with_the_same_key_are_compared_separately() {
        let passes = [pass(["a", "b"], true), pass(["x", "y"], false), pass(["z", "b"], false)];
        let found: Vec<_> = compare(&passes).into_iter().map(|found| (found.fresh, found.other)).collect();
        assert_eq!(found, [("a", "x"), ("b", "y")].map(|(one, other)| (one.to_owned(), other.to_owned())));
    }
}
