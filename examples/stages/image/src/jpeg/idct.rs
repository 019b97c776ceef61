//! Inverse transform of a block's coefficients to its pixels.
//!
//! Eight numbers are transformed by two products with a 4x4 matrix: the product of the even coefficients is the sums of mirrored
//! outputs, the product of the odd coefficients the differences of mirrored outputs. The matching SIMD instruction multiplies
//! eight pairs of 16-bit numbers and adds the two products of each pair, so coefficients are stored as pairs from the start.

use bytemuck::cast;
use wide::{i8x16, i16x8, i16x16, i32x4, i32x8};

use super::eight;

/// Coefficients of the four pairs, by row and by column: even ones first.
const PAIRS: [[usize; 2]; 4] = [[0, 2], [4, 6], [1, 3], [5, 7]];

/// Position in the block passed to [`inverse`], for every index in the order of the scan (a zigzag): pair of rows, then column in
/// the order of the pairs, then one of the two rows.
pub(super) const POSITIONS: [u8; 64] = positions();

/// Half the cosine of n sixteenths of a half turn, in units of 2^-15.
const COSINES: [i16; 8] = [16384, 16069, 15137, 13623, 11585, 9102, 6270, 3196];

/// Weights of every pair of coefficients for each of the outputs 0 to 3, in units of 2^-13. They are the sums of the constants by which
/// `jidctint.c` of libjpeg multiplies a coefficient on its way to an output, so that every result is equal to libjpeg's.
const WEIGHTS: [[[i16; 2]; 4]; 4] = [
    [[8192, 10703], [8192, 4433], [8192, -4433], [8192, -10703]],
    [[8192, 4433], [-8192, -10704], [-8192, 10704], [8192, -4433]],
    [[11363, 9633], [9633, -2259], [6437, -11362], [2260, -6436]],
    [[6437, 2260], [-11362, -6436], [2261, 9633], [9633, -11363]],
];

/// Bits that are dropped after the first pass, whose results have two fractional bits, and after the second one.
const DROPPED: [i32; 2] = [11, 18];

/// Number of fractional bits that [`inverse_4`] keeps between its passes.
const FRACTION: i32 = 4;

const fn positions() -> [u8; 64] {
    let mut positions = [0; 64];
    let (mut row, mut column) = (0_usize, 0_usize);
    let mut place = 0;
    while place < 64 {
        let (pair, which) = find(row);
        let (column_pair, column_which) = find(column);
        positions[place] = (pair * 16 + (column_pair * 2 + column_which) * 2 + which) as u8;
        // Moves along the diagonal; at an edge, one step along the edge.
        if (row + column).is_multiple_of(2) {
            if column == 7 {
                row += 1;
            } else if row == 0 {
                column += 1;
            } else {
                row -= 1;
                column += 1;
            }
        } else if row == 7 {
            column += 1;
        } else if column == 0 {
            row += 1;
        } else {
            row += 1;
            column -= 1;
        }
        place += 1;
    }
    positions
}

/// Number of the pair that contains a coefficient, and the index of the coefficient within the pair.
const fn find(coefficient: usize) -> (usize, usize) {
    let mut pair = 0;
    loop {
        if PAIRS[pair][0] == coefficient {
            return (pair, 0);
        }
        if PAIRS[pair][1] == coefficient {
            return (pair, 1);
        }
        pair += 1;
    }
}

/// Writes the pixels, minus 128, of a block to the first 8 columns of 8 rows. `last` is the index, in the order of the scan, of
/// the last coefficient that is not zero.
#[inline(never)]
pub(super) fn inverse(block: &[i16; 64], last: usize, pixels: &mut [i8], stride: usize) {
    let rows = match last {
        0 => [[inverse_1(block); 8]; 8],
        // The first ten indexes of the zigzag are in the first four rows and columns.
        1..10 => transform::<false>(block),
        _ => transform::<true>(block),
    };
    let pixels = &mut pixels[..7 * stride + 8];
    for (row, eight) in rows.iter().enumerate() {
        pixels[row * stride..row * stride + 8].copy_from_slice(eight);
    }
}

/// Position of a coefficient in the block.
const fn position(row: usize, column: usize) -> usize {
    let ((pair, which), (column_pair, column_which)) = (find(row), find(column));
    pair * 16 + (column_pair * 2 + column_which) * 2 + which
}

/// Writes the pixels, minus 128, of a block at half of its size to the first 4 columns of 4 rows: the transform of the first four
/// coefficients of every row and column.
#[inline(never)]
pub(super) fn inverse_4(block: &[i16; 64], pixels: &mut [i8], stride: usize) {
    // Cosines of a transform of four numbers, in the units of `COSINES`; they are among those of eight numbers.
    const EVEN: i16 = COSINES[4];
    const OUTER: i16 = COSINES[2];
    const INNER: i16 = COSINES[6];
    // The columns 0, 2, 1, 3: one per 32-bit lane, with two of its coefficients.
    let pairs = |at: usize| {
        let lanes = std::array::from_fn(|lane| block[at * 8 + lane % 4 + lane / 4 * 8]);
        i16x8::from(lanes)
    };
    let (even, odd) = (pairs(0), pairs(4));
    let weight = |a: i16, b: i16| i16x8::from([a, b, a, b, a, b, a, b]);
    let half = i32x4::splat(1 << (14 - FRACTION));
    let (sum, difference) = (half + even.dot(weight(EVEN, EVEN)), half + even.dot(weight(EVEN, -EVEN)));
    let (outer, inner) = (odd.dot(weight(OUTER, INNER)), odd.dot(weight(INNER, -OUTER)));
    let rows = [sum + outer, difference + inner, difference - inner, sum - outer];
    let rows: [i16x8; 2] = cast::<[i32x4; 4], [i32x8; 2]>(rows.map(|row| row >> (15 - FRACTION)))
        .map(i16x8::from_i32x8_saturate);
    // Each 32-bit lane is an output of the row.
    let even = i16x8::from([EVEN, EVEN, EVEN, -EVEN, EVEN, -EVEN, EVEN, EVEN]);
    let odd = i16x8::from([OUTER, INNER, INNER, -OUTER, -INNER, OUTER, -OUTER, -INNER]);
    let half = i32x4::splat(1 << (14 + FRACTION));
    let rows = cast::<[i16x8; 2], [[i32; 2]; 4]>(rows).map(|[first, second]| {
        let [first, second] = [first, second].map(|pair| cast::<i32x4, i16x8>(i32x4::splat(pair)));
        (half + first.dot(even) + second.dot(odd)) >> (15 + FRACTION)
    });
    let rows: [i16x8; 2] = cast::<[i32x4; 4], [i32x8; 2]>(rows).map(i16x8::from_i32x8_saturate);
    let rows = cast::<i8x16, [[i8; 4]; 4]>(i8x16::from_i16x16_saturate(cast::<[i16x8; 2], i16x16>(rows)));
    let pixels = &mut pixels[..3 * stride + 4];
    for (row, four) in rows.iter().enumerate() {
        pixels[row * stride..row * stride + 4].copy_from_slice(four);
    }
}

/// Writes the pixels, minus 128, of a block at a quarter of its size to the first 2 columns of 2 rows.
#[inline]
pub(super) fn inverse_2(block: &[i16; 64], pixels: &mut [i8], stride: usize) {
    let at = |row, column| i32::from(block[position(row, column)]);
    let (left, right) = (at(0, 0) + at(0, 1) + 4, at(0, 0) - at(0, 1) + 4);
    let (lower_left, lower_right) = (at(1, 0) + at(1, 1), at(1, 0) - at(1, 1));
    pixels[..2].copy_from_slice(&[left + lower_left, right + lower_right].map(|sum| to_pixel(sum >> 3)));
    pixels[stride..stride + 2]
        .copy_from_slice(&[left - lower_left, right - lower_right].map(|sum| to_pixel(sum >> 3)));
}

/// Mean pixel of a block, minus 128.
pub(super) fn inverse_1(block: &[i16; 64]) -> i8 {
    to_pixel((i32::from(block[0]) + 4) >> 3)
}

fn to_pixel(value: i32) -> i8 {
    value.clamp(-128, 127) as i8
}

/// Without `HIGH`, the coefficients 4 to 7 of all rows and columns count as zero.
#[inline(always)]
fn transform<const HIGH: bool>(block: &[i16; 64]) -> [[i8; 8]; 8] {
    // Transforms the columns. Each 32-bit lane is one column and holds a pair of its coefficients; the columns are in the order of `PAIRS`.
    let pairs = eight(|at| i16x8::from(block.as_chunks::<8>().0[at]));
    let [first, second] = [outputs::<0, HIGH>(&pairs), outputs::<1, HIGH>(&pairs)];
    let [third, fourth] = [outputs::<2, HIGH>(&pairs), outputs::<3, HIGH>(&pairs)];
    let rows = [first[0], second[0], third[0], fourth[0], fourth[1], third[1], second[1], first[1]];
    let rows = eight(|at| transform_row::<HIGH>(rows[at]));
    let two =
        |at: usize| cast(i8x16::from_i16x16_saturate(cast::<[i16x8; 2], i16x16>([rows[at], rows[at + 1]])));
    cast::<[[[i8; 8]; 2]; 4], [[i8; 8]; 8]>([two(0), two(2), two(4), two(6)])
}

/// The rows `OUTPUT` and 7 - `OUTPUT` of the transformed columns.
#[inline(always)]
fn outputs<const OUTPUT: usize, const HIGH: bool>(pairs: &[i16x8; 8]) -> [i16x8; 2] {
    let weight = |pair: usize| {
        let [a, b] = WEIGHTS[pair][OUTPUT];
        i16x8::from([a, b, a, b, a, b, a, b])
    };
    let half = i32x4::splat(1 << (DROPPED[0] - 1));
    let side = |side: usize| {
        let mut even = half + pairs[side].dot(weight(0));
        let mut odd = pairs[4 + side].dot(weight(2));
        if HIGH {
            even += pairs[2 + side].dot(weight(1));
            odd += pairs[6 + side].dot(weight(3));
        }
        [(even + odd) >> DROPPED[0], (even - odd) >> DROPPED[0]]
    };
    let ([sum, difference], [next_sum, next_difference]) = (side(0), side(1));
    [[sum, next_sum], [difference, next_difference]]
        .map(|both| i16x8::from_i32x8_saturate(cast::<[i32x4; 2], i32x8>(both)))
}

/// Transforms a row: the lanes are first the outputs 0 to 3 and then their mirror images.
#[inline(always)]
fn transform_row<const HIGH: bool>(row: i16x8) -> i16x8 {
    let weights = |pair: usize| {
        let [[a, b], [c, d], [e, f], [g, h]] = WEIGHTS[pair];
        i16x8::from([a, b, c, d, e, f, g, h])
    };
    let pairs = cast::<i16x8, i32x4>(row).to_array().map(|pair| cast::<i32x4, i16x8>(i32x4::splat(pair)));
    let mut even = i32x4::splat(1 << (DROPPED[1] - 1)) + pairs[0].dot(weights(0));
    let mut odd = pairs[2].dot(weights(2));
    if HIGH {
        even += pairs[1].dot(weights(1));
        odd += pairs[3].dot(weights(3));
    }
    let [a, b, c, d] = (even - odd).to_array();
    let both = [(even + odd) >> DROPPED[1], i32x4::from([d, c, b, a]) >> DROPPED[1]];
    i16x8::from_i32x8_saturate(cast::<[i32x4; 2], i32x8>(both))
}

#[cfg(test)]
mod tests {
    use std::f64::consts::{FRAC_1_SQRT_2, PI};

    use penstock_guest::Item;

    use super::*;

    /// Inverse transform, computed from its definition.
    fn defined(coefficients: &[[i16; 8]; 8]) -> [[f64; 8]; 8] {
        let share = |coefficient: usize, at: usize| {
            let scale = if coefficient == 0 { FRAC_1_SQRT_2 } else { 1.0 };
            scale / 2.0 * ((2 * at + 1) as f64 * coefficient as f64 * PI / 16.0).cos()
        };
        let mut pixels = [[0.0; 8]; 8];
        for (at, pixel) in pixels.as_flattened_mut().iter_mut().enumerate() {
            for (from, &coefficient) in coefficients.as_flattened().iter().enumerate() {
                *pixel += f64::from(coefficient) * share(from / 8, at / 8) * share(from % 8, at % 8);
            }
        }
        pixels
    }

    /// Rows and columns of the first indexes of the scan, as the standard lists them.
    const START: [(usize, usize); 10] =
        [(0, 0), (0, 1), (1, 0), (2, 0), (1, 1), (0, 2), (0, 3), (1, 2), (2, 1), (3, 0)];

    fn place_of(row: usize, column: usize) -> usize {
        POSITIONS.iter().position(|&other| usize::from(other) == position(row, column)).unwrap()
    }

    #[test]
    fn the_scan_goes_in_zigzag() {
        for (place, (row, column)) in START.into_iter().enumerate() {
            assert_eq!(place_of(row, column), place);
            assert_eq!(place_of(7 - row, 7 - column), 63 - place);
        }
    }

    #[test]
    fn pixels_agree_with_the_definition_within_one() {
        let mut rng = Item::new("block").with_seed(1).rng();
        for count in [1, 2, 5, 10, 11, 30, 64].repeat(40) {
            let (mut coefficients, mut block) = ([[0; 8]; 8], [0; 64]);
            for (at, coefficient) in coefficients.as_flattened_mut().iter_mut().enumerate() {
                let place = place_of(at / 8, at % 8);
                if place < count {
                    *coefficient = rng.below(161) as i16 - 80;
                    block[usize::from(POSITIONS[place])] = *coefficient;
                }
            }
            let mut pixels = [0; 7 * 16 + 8];
            inverse(&block, count - 1, &mut pixels, 16);
            for (row, defined) in defined(&coefficients).iter().enumerate() {
                for (column, defined) in defined.iter().enumerate() {
                    let made = f64::from(pixels[row * 16 + column]);
                    assert!((made - defined.clamp(-128.0, 127.0)).abs() < 1.0, "{made} instead of {defined}");
                }
            }
        }
    }

    /// Inverse transform of the first coefficients of every row and column to an edge of this length, computed from its
    /// definition.
    fn reduced(coefficients: &[[i16; 8]; 8], edge: usize) -> Vec<f64> {
        let share = |coefficient: usize, at: usize| {
            let scale = if coefficient == 0 { 1.0 } else { 2.0_f64.sqrt() };
            scale * ((2 * at + 1) as f64 * coefficient as f64 * PI / (2 * edge) as f64).cos()
        };
        let pixel = |row, column| -> f64 {
            let parts = (0..edge * edge).map(|from| {
                let (down, across) = (from / edge, from % edge);
                f64::from(coefficients[down][across]) / 8.0 * share(down, row) * share(across, column)
            });
            parts.sum()
        };
        (0..edge * edge).map(|at| pixel(at / edge, at % edge)).collect()
    }

    #[test]
    fn pixels_of_smaller_blocks_agree_with_the_definition_within_one() {
        let mut rng = Item::new("block").with_seed(2).rng();
        for _ in 0..100 {
            let (mut coefficients, mut block) = ([[0; 8]; 8], [0; 64]);
            for (at, coefficient) in coefficients.as_flattened_mut().iter_mut().enumerate() {
                *coefficient = rng.below(161) as i16 - 80;
                block[position(at / 8, at % 8)] = *coefficient;
            }
            let (mut four, mut two) = ([0; 3 * 16 + 4], [0; 16 + 2]);
            inverse_4(&block, &mut four, 16);
            inverse_2(&block, &mut two, 16);
            for (edge, pixels) in [(4, &four[..]), (2, &two[..]), (1, &[inverse_1(&block)])] {
                for (at, defined) in reduced(&coefficients, edge).into_iter().enumerate() {
                    let made = f64::from(pixels[at / edge * 16 + at % edge]);
                    assert!((made - defined.clamp(-128.0, 127.0)).abs() < 1.0, "{made} instead of {defined}");
                }
            }
        }
    }
}
