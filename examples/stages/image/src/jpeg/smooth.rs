//! Estimates of what progressive JPEGs leave out, with the numbers of libjpeg (`jdcoefct.c`): the first coefficients of a block,
//! from those of the blocks around it that hold their means.

/// Number of coefficients, in the order of the scan, that are estimated.
pub(super) const ESTIMATED: usize = 10;

/// Weights of five by five means, in units of 2^-8.
type Kernel = [[i16; 5]; 5];

/// Kernels of the coefficients, if only means are known; with true, rows and columns change places.
const OF_MEANS: [(Kernel, bool); ESTIMATED] = [
    (MEAN, false),
    (SLOPE, false),
    (SLOPE, true),
    (CURVE, true),
    (TWIST, false),
    (CURVE, false),
    (WAVE, false),
    (SADDLE, false),
    (SADDLE, true),
    (WAVE, true),
];

/// Kernels of the coefficients 1 to 5, if others are known too.
const OF_OTHERS: [(Kernel, bool); 5] =
    [(LINE_SLOPE, false), (LINE_SLOPE, true), (LINE_CURVE, true), (CROSS, false), (LINE_CURVE, false)];

const MEAN: Kernel = [
    [-2, -6, -8, -6, -2],
    [-6, 6, 42, 6, -6],
    [-8, 42, 152, 42, -8],
    [-6, 6, 42, 6, -6],
    [-2, -6, -8, -6, -2],
];
const SLOPE: Kernel =
    [[-1, -1, 0, 1, 1], [-3, 13, 0, -13, 3], [-3, 38, 0, -38, 3], [-3, 13, 0, -13, 3], [-1, -1, 0, 1, 1]];
const CURVE: Kernel = [[0; 5], [0, 2, -5, 2, 0], [1, 7, -14, 7, 1], [0, 2, -5, 2, 0], [0; 5]];
const TWIST: Kernel = [[-1, 0, 0, 0, 1], [0, 9, 0, -9, 0], [0; 5], [0, -9, 0, 9, 0], [1, 0, 0, 0, -1]];
const WAVE: Kernel = [[0; 5], [0, 1, 0, -1, 0], [0, 2, 0, -2, 0], [0, 1, 0, -1, 0], [0; 5]];
const SADDLE: Kernel = [[0; 5], [0, 1, -3, 1, 0], [0; 5], [0, -1, 3, -1, 0], [0; 5]];
const LINE_SLOPE: Kernel = [[0; 5], [0; 5], [-7, 50, 0, -50, 7], [0; 5], [0; 5]];
const LINE_CURVE: Kernel = [[0; 5], [0; 5], [-1, 13, -24, 13, -1], [0; 5], [0; 5]];
const CROSS: Kernel = [[0, -1, 0, 1, 0], [-1, 10, 0, -10, 1], [0; 5], [1, -10, 0, 10, -1], [0, 1, 0, -1, 0]];

/// Estimates the coefficients of a block that are zero and incomplete. `missing` is the number of their low bits that are
/// missing, or `None` if nothing is known of them; `means` are the first coefficients of the blocks around, rows first. The first
/// ten of `steps` must not be 0.
pub(super) fn smooth(
    block: &mut [i16; 64],
    means: &[[i16; 5]; 5],
    missing: &[Option<u32>; 64],
    steps: &[i16; 64],
) {
    let step = |place: usize| i64::from(steps[place] as u16);
    let estimate = |place: usize, (kernel, turns): &(Kernel, bool)| {
        let mean = |at: usize| if *turns { means[at % 5][at / 5] } else { means[at / 5][at % 5] };
        let products =
            kernel.as_flattened().iter().enumerate().map(|(at, &own)| i64::from(own) * i64::from(mean(at)));
        let sum = step(0) * products.sum::<i64>();
        let size = ((step(place) << 7) + sum.abs()) / (step(place) << 8);
        let most = missing[place].filter(|_| place > 0).map_or(i64::MAX, |bits| (1 << bits) - 1);
        (sum.signum() * size.min(most)) as i16
    };
    let knows_means_only = missing[1..ESTIMATED].iter().all(Option::is_none);
    let kernels = if knows_means_only { &OF_MEANS[1..] } else { &OF_OTHERS };
    for (place, kernel) in (1..).zip(kernels) {
        if missing[place] != Some(0) && block[place] == 0 {
            block[place] = estimate(place, kernel);
        }
    }
    if knows_means_only {
        block[0] = estimate(0, &OF_MEANS[0]);
    }
}
