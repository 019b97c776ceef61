//! Ascending ranges of numbers, as first number and count.

/// First number, and how many follow each other from it on; never zero.
pub(super) type Range = (u64, u64);

/// The numbers at some places of a sequence. `numbers` are the ranges of the sequence, `places` those of the places; both ascend and do not
/// overlap. Passes over each once.
pub(super) fn at_places(
    places: impl IntoIterator<Item = Range>,
    numbers: impl IntoIterator<Item = Range>,
) -> Vec<Range> {
    let mut numbers = numbers.into_iter();
    let (mut range, mut before) = (numbers.next(), 0_u64);
    let mut found = Vec::new();
    for (mut place, mut count) in places {
        while count > 0
            && let Some((first, length)) = range
        {
            let within = place.saturating_sub(before);
            if within >= length {
                (range, before) = (numbers.next(), before.saturating_add(length));
                continue;
            }
            let taken = count.min(length - within);
            found.push((first + within, taken));
            (place, count) = (place + taken, count - taken);
        }
    }
    found
}

/// The numbers in any of two sequences of ranges, each ascending, as ranges that are not adjacent. Passes over each once.
pub(super) fn union(
    one: impl IntoIterator<Item = Range>,
    other: impl IntoIterator<Item = Range>,
) -> Vec<Range> {
    let (mut one, mut other) = (one.into_iter().peekable(), other.into_iter().peekable());
    let mut all: Vec<Range> = Vec::new();
    loop {
        let next = match (one.peek(), other.peek()) {
            (Some(of_one), Some(of_other)) if of_one <= of_other => one.next(),
            (Some(_), None) => one.next(),
            _ => other.next(),
        };
        let Some((first, count)) = next else { return all };
        match all.last_mut() {
            Some((start, before)) if *start + *before >= first => {
                *before = (*before).max(first + count - *start);
            }
            _ => all.push((first, count)),
        }
    }
}

/// A predicate for ascending numbers: true for those in none of the ascending `ranges`. Passes over them once.
pub(super) fn outside(ranges: impl IntoIterator<Item = Range>) -> impl FnMut(u64) -> bool {
    let mut ranges = ranges.into_iter().peekable();
    move |number| {
        while ranges.next_if(|(first, count)| first + count <= number).is_some() {}
        ranges.peek().is_none_or(|(first, _)| number < *first)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::rest::Places;
    use super::*;

    fn numbers(ranges: &[Range]) -> Vec<u64> {
        ranges.iter().flat_map(|(first, count)| *first..first + count).collect()
    }

    /// Ranges that ascend; adjacent ones are possible.
    fn ascending() -> impl Strategy<Value = Vec<Range>> {
        prop::collection::vec((0_u64..4, 1_u64..5), 0..40).prop_map(|steps| {
            let mut end = 0;
            steps
                .into_iter()
                .map(|(gap, count)| {
                    let first = end + gap;
                    end = first + count;
                    (first, count)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn ranges_are_merged_as_sets_of_numbers_are(
            one in ascending(), other in ascending(), asked in prop::collection::btree_set(0_u64..200, 0..40),
        ) {
            let merged = union(one.clone(), other.clone());
            let sets: BTreeSet<u64> = numbers(&one).into_iter().chain(numbers(&other)).collect();
            prop_assert_eq!(numbers(&merged), sets.into_iter().collect::<Vec<_>>());
            prop_assert!(merged.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0), "{:?}", merged);
            let mut is_outside = outside(one.clone());
            for number in asked {
                prop_assert_eq!(is_outside(number), !numbers(&one).contains(&number));
            }
        }

        #[test]
        fn numbers_at_places_are_those_of_a_list(places in ascending(), sequence in ascending()) {
            let list = numbers(&sequence);
            let expected: Vec<u64> =
                numbers(&places).iter().filter_map(|place| list.get(*place as usize).copied()).collect();
            prop_assert_eq!(numbers(&at_places(places, sequence)), expected);
        }

        #[test]
        fn a_number_is_found_at_its_place(gaps in ascending(), more in 0_u64..5) {
            let top = gaps.last().map_or(0, |(first, count)| first + count) + more;
            let sequence = Places::of_gaps(gaps.clone(), top);
            let list: Vec<u64> = numbers(&gaps).into_iter().chain(top..top + 20).collect();
            for number in 0..top + 20 {
                let place = list.iter().position(|listed| *listed == number).map(|place| place as u64);
                prop_assert_eq!(sequence.place_of(number), place);
                prop_assert_eq!(sequence.len(number), list.iter().filter(|listed| **listed < number).count() as u64);
                if let Some(place) = place {
                    prop_assert_eq!(sequence.at(place), number);
                }
            }
        }
    }

    /// Counts how many ranges are taken.
    fn counted(ranges: Vec<Range>, taken: &Cell<usize>) -> impl Iterator<Item = Range> + '_ {
        ranges.into_iter().inspect(|_| taken.set(taken.get() + 1))
    }

    #[test]
    fn each_range_is_taken_once_whatever_the_other_ranges_are() {
        for most in [100_u64, 200, 400] {
            let odd: Vec<Range> = (0..most).map(|number| (2 * number + 1, 1)).collect();
            let even: Vec<Range> = (0..most).map(|number| (4 * number, 1)).collect();
            let taken = Cell::new(0);
            assert_eq!(union(counted(odd.clone(), &taken), counted(even.clone(), &taken))[0], (0, 2));
            assert_eq!(taken.get() as u64, 2 * most);
            let taken = Cell::new(0);
            let found = at_places(counted(even.clone(), &taken), counted(odd.clone(), &taken));
            assert_eq!(found.last(), Some(&(8 * most.div_ceil(4) - 7, 1)));
            assert!(taken.get() as u64 <= 2 * most, "{}", taken.get());
            let taken = Cell::new(0);
            let mut is_outside = outside(counted(odd, &taken));
            assert_eq!((0..2 * most).filter(|number| is_outside(*number)).count() as u64, most);
            assert_eq!(taken.get() as u64, most);
        }
    }
}
