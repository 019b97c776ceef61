//! Random numbers of a beta distribution.

use penstock_guest::Rng;

/// Random number from 0 to 1, distributed as Beta(`alpha`, `alpha`). With an `alpha` of 0, the number is 0 or 1.
pub(crate) fn beta(rng: &mut Rng, alpha: f64) -> f64 {
    if alpha == 0.0 {
        return f64::from(u8::from(rng.chance(0.5)));
    }
    // The share of one of two gamma numbers in their sum is a beta number. Computed with logarithms: for a small `alpha` both
    // numbers nearly always underflow.
    let (first, second) = (gamma_ln(rng, alpha), gamma_ln(rng, alpha));
    1.0 / (1.0 + (second - first).exp())
}

/// Logarithm of a random number distributed as Gamma(`shape`), by G. Marsaglia and W. Tsang, "A simple method for generating
/// gamma variables", 2000: for a shape below 1, it is the number for the shape + 1, times u to the power of 1 / shape.
fn gamma_ln(rng: &mut Rng, shape: f64) -> f64 {
    if shape < 1.0 {
        return gamma_ln(rng, shape + 1.0) + positive_unit(rng).ln() / shape;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(rng);
        let root = 1.0 + c * x;
        if root <= 0.0 {
            continue;
        }
        let v = root * root * root;
        if positive_unit(rng).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return (d * v).ln();
        }
    }
}

/// Random number of the normal distribution, by Box and Muller.
fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * positive_unit(rng).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.unit()).cos()
}

/// Random number above 0 and up to 1, so that it has a logarithm.
fn positive_unit(rng: &mut Rng) -> f64 {
    1.0 - rng.unit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_mean_and_the_variance_of_the_distribution() {
        for alpha in [0.05, 0.2, 0.9, 1.0, 2.0, 8.0] {
            let mut rng = Rng::from_seed(1);
            let drawn: Vec<f64> = (0..40_000).map(|_| beta(&mut rng, alpha)).collect();
            assert!(drawn.iter().all(|drawn| (0.0..=1.0).contains(drawn)), "{alpha}");
            let mean = drawn.iter().sum::<f64>() / 40_000.0;
            let variance = drawn.iter().map(|drawn| (drawn - mean).powi(2)).sum::<f64>() / 40_000.0;
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!((mean - 0.5).abs() < 0.01, "{alpha}: mean {mean}");
            assert!((variance / expected - 1.0).abs() < 0.03, "{alpha}: variance {variance}, not {expected}");
        }
    }

    #[test]
    fn alpha_one_is_uniform() {
        let mut rng = Rng::from_seed(2);
        let mut counts = [0; 10];
        for _ in 0..50_000 {
            counts[(beta(&mut rng, 1.0) * 10.0) as usize % 10] += 1;
        }
        assert!(counts.iter().all(|count| (4_700..=5_300).contains(count)), "{counts:?}");
    }

    #[test]
    fn alpha_near_zero_does_not_underflow() {
        let mut rng = Rng::from_seed(3);
        let drawn: Vec<f64> = (0..2000).map(|_| beta(&mut rng, 1e-6)).collect();
        assert!(drawn.iter().all(|drawn| !(1e-3..0.999).contains(drawn)), "{drawn:?}");
        assert!(drawn.iter().any(|&drawn| drawn < 0.5) && drawn.iter().any(|&drawn| drawn > 0.5));
    }
}
