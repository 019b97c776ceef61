//! Seeds of samples: pure functions of the origin of a sample, so that a pipeline makes the same data for any number of threads
//! and ranks and in any order. **These functions never change**: runs are reproducible across versions of Penstock.
//!
//! The hash is FNV-1a (64 bit) over the stage's name in UTF-8, then one word after another is absorbed by
//! `state = mix((state ^ word) + 0x9e3779b97f4a7c15)`, where the sum wraps and `mix` is the finaliser of splitmix64.
//! The words are, in this order: document seed, epoch, index, path.

use penstock_engine::item::Origin;

/// Step of splitmix64: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Seed of one sample in one stage: a hash of document seed, stage name, epoch, index in the unshuffled source and
/// path of fan-outs.
pub fn item_seed(document_seed: u64, stage: &str, origin: &Origin) -> u64 {
    StageSeed::new(document_seed, stage).item(origin)
}

/// Path of child `child` (from 0) of a fan-out.
pub fn child_path(path: u64, child: u64) -> u64 {
    absorb(absorb(0, path), child)
}

/// Common part of all seeds of one stage, hashed once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageSeed(u64);

impl StageSeed {
    pub(crate) fn new(document_seed: u64, stage: &str) -> Self {
        Self(absorb(fnv1a(stage.as_bytes()), document_seed))
    }

    pub(crate) fn item(self, origin: &Origin) -> u64 {
        absorb(absorb(absorb(self.0, u64::from(origin.epoch)), origin.index), origin.path)
    }
}

fn absorb(state: u64, word: u64) -> u64 {
    mix((state ^ word).wrapping_add(GOLDEN))
}

/// Finaliser of splitmix64: every bit of the input affects every bit of the output.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_hash_consists_of_fnv_1a_and_splitmix64() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        // First output of splitmix64 seeded with 0.
        assert_eq!(absorb(0, 0), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn seeds_never_change() {
        let origin = Origin::at(1, 42);
        assert_eq!(item_seed(7, "augment", &Origin::default()), 0xa9f5_11af_486b_ffd0);
        assert_eq!(item_seed(7, "augment", &origin), 0xa407_d250_d26b_775b);
        assert_eq!(child_path(0, 0), 0xa706_dd2f_4d19_7e6f);
        assert_eq!(child_path(child_path(0, 3), 1), 0xf200_11e5_90d5_d0f5);
    }

    #[test]
    fn every_part_of_the_origin_changes_the_seed() {
        let mut seeds = HashSet::new();
        for document in 0..3 {
            for stage in ["a", "b"] {
                for epoch in 0..3 {
                    for index in 0..10 {
                        for path in [0, child_path(0, 0), child_path(0, 1)] {
                            seeds.insert(item_seed(
                                document,
                                stage,
                                &Origin { epoch, index, path, ..Origin::default() },
                            ));
                        }
                    }
                }
            }
        }
        assert_eq!(seeds.len(), 3 * 2 * 3 * 10 * 3);
    }
}
