//! Formats amounts for people.

const BYTES_PER_MIB: f64 = (1_u64 << 20) as f64;

/// A duration as number and unit: `102.2` and `ms`.
pub fn scaled(seconds: f64) -> (String, &'static str) {
    let ms = seconds * 1e3;
    if ms >= 1000.0 {
        (format!("{seconds:.1}"), "sec")
    } else if ms >= 1.0 {
        (format!("{ms:.1}"), "ms")
    } else if ms >= 0.01 || ms == 0.0 {
        (format!("{ms:.2}"), "ms")
    } else {
        (format!("{:.2}", ms * 1e3), "us")
    }
}

/// A duration with its unit: `102.2 ms`.
pub fn duration(seconds: f64) -> String {
    let (value, unit) = scaled(seconds);
    format!("{value} {unit}")
}

/// A share (0.0 to 1.0) in percent: `12.5 %`.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A rate per second, without the unit: `24.55`, `1,234`.
pub fn rate(per_second: f64) -> String {
    if per_second < 100.0 { format!("{per_second:.2}") } else { count(per_second.round() as u64) }
}

/// A whole number with thousands separators: `12,345`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// An amount of data: `118.4 MiB`.
pub fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / BYTES_PER_MIB)
}

/// A number of things: `1 sample`, `12,345 samples`.
pub fn plural(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_in_the_unit_that_fits_them() {
        let written = [10.23, 0.1022, 0.0157e-3, 0.0007e-3, 0.0, 0.0009].map(duration);
        assert_eq!(written, ["10.2 sec", "102.2 ms", "0.02 ms", "0.70 us", "0.00 ms", "0.90 ms"]);
    }

    #[test]
    fn thousands_are_separated_by_commas() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
    }
}
