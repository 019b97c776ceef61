//! Names of formats that this stage does not decode, for its messages.

/// Place and bytes by which a format is known, and its name.
const MARKS: [(usize, &[u8], &str); 32] = [
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (0, b"II+\0", "TIFF"),
    (0, b"MM\0+", "TIFF"),
    (4, b"ftypavi", "AVIF"),
    (4, b"ftyphei", "HEIC"),
    (4, b"ftyphev", "HEIC"),
    (4, b"ftypmif1", "HEIF or AVIF"),
    (4, b"ftypmsf1", "HEIF or AVIF"),
    (4, b"ftypcrx", "CR3, the raw data of a camera"),
    (4, b"ftyp", "MP4 or another container of videos"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"\0\0\0\x0cJXL ", "JPEG XL"),
    (0, b"\0\0\0\x0cjP", "JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
    (0, b"II\xbc", "JPEG XR"),
    (0, b"8BPS", "PSD"),
    (0, b"\0\0\x01\0", "ICO"),
    (0, b"\0\0\x02\0", "CUR"),
    (0, b"icns", "ICNS"),
    (0, b"DDS ", "DDS"),
    (0, b"qoif", "QOI"),
    (0, b"\x76\x2f\x31\x01", "OpenEXR"),
    (0, b"#?", "Radiance HDR"),
    (0, b"SIMPLE  =", "FITS"),
    (128, b"DICM", "DICOM"),
    (0, b"%PDF", "PDF"),
    (0, b"%!PS", "PostScript"),
    (0, b"\x1f\x8b", "compressed with gzip"),
    (0, b"PK\x03\x04", "ZIP"),
    (0, b"\x93NUMPY", "NumPy, which `std/table` reads"),
    (0, b"<!DOCTYPE html", "HTML, such as the message of a server"),
];
/// Length of the part of a text in which its kind is looked for, in bytes.
const LOOKED_AT: usize = 1024;

/// Format of a file, if it is one that is known by name only.
pub(super) fn format(file: &[u8]) -> Option<&'static str> {
    let has = |(at, mark, _): &&(usize, &[u8], &str)| {
        file.get(*at..)
            .and_then(|rest| rest.get(..mark.len()))
            .is_some_and(|start| start.eq_ignore_ascii_case(mark))
    };
    match file {
        [b'P', b'1'..=b'7', b' ' | b'\t' | b'\r' | b'\n' | b'#', ..] => Some("PNM: PBM, PGM, PPM or PAM"),
        [b'P', b'f' | b'F', b'\n', ..] => Some("PFM"),
        _ => MARKS.iter().find(has).map(|(.., name)| *name).or_else(|| text(file)),
    }
}

/// Format of a text with tags.
fn text(file: &[u8]) -> Option<&'static str> {
    let file = file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file).trim_ascii_start();
    let start = &file[..file.len().min(LOOKED_AT)];
    let has = |tag: &[u8]| start.windows(tag.len()).any(|part| part.eq_ignore_ascii_case(tag));
    match start {
        [b'<', ..] if has(b"<svg") => Some("SVG"),
        [b'<', ..] if has(b"<html") => Some("HTML, such as the message of a server"),
        [b'<', b'?', b'x', b'm', b'l', ..] => Some("XML, such as the message of a server"),
        _ => None,
    }
}
