//! How numbers and lines are written.

use std::io::{self, Write};

/// Writes a line on standard output.
pub(crate) fn say(text: &str) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// Writes a line on standard error; where that is closed, nobody is left to tell.
pub(crate) fn warn(text: &str) {
    writeln!(io::stderr().lock(), "{text}").unwrap_or_default();
}

/// A length of time as the statistics' log lines write it: `102.2 [ms]`.
pub(crate) fn bracketed(seconds: f64) -> String {
    let (value, unit) = scaled(seconds);
    format!("{value} [{unit}]")
}

/// A length of time in a table: `102.2 ms`; a dash where nothing was measured.
pub(crate) fn duration(seconds: Option<f64>) -> String {
    seconds.map_or_else(dash, |seconds| {
        let (value, unit) = scaled(seconds);
        format!("{value} {unit}")
    })
}

/// A share in percent; a dash where nothing was measured.
pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or_else(dash, |share| format!("{:.1} %", share * 100.0))
}

/// A rate per second; a dash where nothing was measured.
pub(crate) fn rate(per_second: Option<f64>) -> String {
    per_second.map_or_else(
        dash,
        |rate| if rate < 100.0 { format!("{rate:.2}") } else { count(rate.round() as u64) },
    )
}

/// A whole number with thousands apart: `12,345`.
pub(crate) fn count(number: u64) -> String {
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

fn dash() -> String {
    "-".to_owned()
}

fn scaled(seconds: f64) -> (String, &'static str) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_in_the_unit_people_think_in() {
        let written = [10.23, 0.1022, 0.0157e-3, 0.0007e-3, 0.0, 0.0009].map(bracketed);
        assert_eq!(written, ["10.2 [sec]", "102.2 [ms]", "0.02 [ms]", "0.70 [us]", "0.00 [ms]", "0.90 [ms]"]);
    }

    #[test]
    fn thousands_stand_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
    }
}
