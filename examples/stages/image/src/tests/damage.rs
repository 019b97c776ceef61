//! Damaged and hostile files.

use super::*;

fn refused(bytes: &[u8]) -> String {
    item(bytes, 0, &json!({})).unwrap_err().message().to_owned()
}

#[test]
fn files_of_other_formats_are_named() {
    assert_eq!(refused(b""), "the file is empty");
    let other = "the file is not a JPEG, PNG, WebP, GIF or BMP: it starts with ";
    for (start, name) in [
        (&b"II*\0rest"[..], "49 49 2a 00 (TIFF)"),
        (b"\0\0\0\x20ftypavif", "00 00 00 20 (AVIF)"),
        (b"\0\0\0\x20ftypheic", "00 00 00 20 (HEIC)"),
        (b"\xff\x0arest", "ff 0a 72 65 (JPEG XL)"),
        (b"\0\0\0\x0cjP  \r\n", "00 00 00 0c (JPEG 2000)"),
        (b"P6\n1 1\n", "50 36 0a 31 (PNM: PBM, PGM, PPM or PAM)"),
        (b"8BPS", "38 42 50 53 (PSD)"),
        (b"\0\0\x01\0\x01\0", "00 00 01 00 (ICO)"),
        (b"\xef\xbb\xbf<?xml version=\"1.0\"?>\n<svg/>", "ef bb bf 3c (SVG)"),
        (b"<?xml version=\"1.0\"?><Error/>", "3c 3f 78 6d (XML, such as the message of a server)"),
        (b"<!doctype HTML>", "3c 21 64 6f (HTML, such as the message of a server)"),
        (b"\x1f\x8b\x08", "1f 8b 08 (compressed with gzip)"),
    ] {
        assert_eq!(refused(start), format!("{other}{name}"));
    }
    assert_eq!(refused(b"hi"), format!("{other}68 69"));
}

#[test]
fn truncated_files_are_refused_with_the_reason() {
    for name in ["baseline-420.jpg", "progressive-420.jpg"] {
        let whole = file(name);
        for length in [2, 100, whole.len() / 2, whole.len() - 40] {
            let expected = format!("the JPEG is truncated: its {length} bytes end before the image");
            assert_eq!(refused(&whole[..length]), expected, "{name}");
        }
    }
    for (name, start) in [
        ("colour.png", "the PNG is damaged: "),
        ("lossy.webp", "the WebP is damaged: "),
        ("lossless.webp", "the WebP is damaged: "),
        ("still.gif", "the GIF is "),
        ("colour.bmp", "the BMP is damaged: "),
    ] {
        let whole = file(name);
        for length in [12, 30, whole.len() / 2] {
            let found = refused(&whole[..length]);
            assert!(found.starts_with(start), "{name}, {length} bytes: {found}");
        }
    }
}

#[test]
fn bombs_are_refused_by_their_header() {
    let large = |name: &str, places: &[usize], value: u8| {
        let mut bytes = file(name);
        for &place in places {
            bytes[place] = value;
        }
        refused(&bytes)
    };
    let jpeg = file("baseline-420.jpg");
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    assert_eq!(
        large("baseline-420.jpg", &[frame + 5, frame + 6, frame + 7, frame + 8], 255),
        "the image is too large: 65535 x 65535 pixels, more than `max_pixels`, 50000000"
    );
    let jpeg = file("progressive-444.jpg");
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc2]).unwrap();
    // 6,959 x 6,973: few enough pixels, but too many coefficients of all scans.
    let found = large("progressive-444.jpg", &[frame + 5, frame + 7], 27);
    assert!(found.starts_with("the image is too large: it takes "), "{found}");
    let gif = large("still.gif", &[7, 9], 255);
    assert!(gif.starts_with("the image is too large: ") && gif.contains("more than `max_pixels`"), "{gif}");
    let bmp = large("colour.bmp", &[20, 24], 100);
    assert!(bmp.contains("too large") || bmp.contains("damaged"), "{bmp}");
    // The checksum of the header no longer fits, so the size of a PNG is written with its own.
    let mut png = file("colour.png");
    png[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    let sum = crc(&png[12..29]).to_be_bytes();
    png[29..33].copy_from_slice(&sum);
    let limit = "the image is too large: 65536 x 65536 pixels, more than `max_pixels`, 50000000";
    assert_eq!(refused(&png), limit);
    // A small part of a large header, which the decoder would refuse for its own limits.
    png[16..24].copy_from_slice(&[0, 0, 0x75, 0x30, 0, 0, 0x75, 0x30]);
    let limit = "the image is too large: 30000 x 30000 pixels, more than `max_pixels`, 50000000";
    assert_eq!(refused(&png), limit);
    let mut webp = file("lossless.webp");
    webp[21..25].copy_from_slice(&[0xfe, 0xbf, 0xff, 0x0f]);
    assert_eq!(
        refused(&webp),
        "the image is too large: 16383 x 16383 pixels, more than `max_pixels`, 50000000"
    );
}

/// Checksum of a PNG's chunk.
pub(super) fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg()))
    })
}

/// Number of damaged files of each kind.
const DAMAGED: usize = 1000;

#[test]
fn damaged_files_never_cause_a_panic() {
    let params = |draft: bool| json!({ "draft": draft, "ops": [{ "Resize": { "size": 20 } }, { "ToDtype": { "dtype": "float32" } }] });
    let settings = [true, false].map(|draft| settings(&params(draft)));
    let kinds: [(&str, &[&str]); 5] = [
        (
            "JPEG",
            &[
                "baseline-420.jpg",
                "progressive-422.jpg",
                "cmyk.jpg",
                "orientation-6.jpg",
                "restart.jpg",
                "scans-mixed.jpg",
                "scans-progressive.jpg",
                "scans-411.jpg",
                "scans-410.jpg",
                "ycck-mixed.jpg",
                "incomplete.jpg",
            ],
        ),
        ("PNG", &["colour.png", "palette-transparent.png", "colour-16.png", "bits.png", "orientation.png"]),
        ("WebP", &["lossy.webp", "lossless.webp", "transparent.webp", "orientation.webp"]),
        ("GIF", &["still.gif", "animated.gif"]),
        (
            "BMP",
            &[
                "colour.bmp",
                "palette.bmp",
                "bits.bmp",
                "short-565.bmp",
                "masks-32.bmp",
                "old-4.bmp",
                "runs-4.bmp",
                "runs-8.bmp",
            ],
        ),
    ];
    for (kind, names) in kinds {
        let mut rng = Item::new(kind).with_seed(7).rng();
        let files: Vec<Vec<u8>> = names.iter().map(|name| file(name)).collect();
        let mut refused = 0;
        for at in 0..DAMAGED {
            let mut bytes = files[at % files.len()].clone();
            for _ in 0..=rng.index(4) {
                // Headers are where damage does most.
                let most = if rng.chance(0.5) { bytes.len().min(100) } else { bytes.len() };
                let place = rng.index(most);
                bytes[place] = rng.below(256) as u8;
            }
            if rng.chance(0.2) {
                bytes.truncate(rng.index(bytes.len()));
            }
            let item = Item::new("a").with("bytes", &bytes[..]);
            match transform(item, &settings[usize::from(rng.chance(0.5))]) {
                // Some damaged files can still be decoded.
                Ok(item) => drop(item.tensor::<f32>("image").unwrap()),
                Err(error) => {
                    assert!(!error.message().is_empty());
                    refused += 1;
                }
            }
        }
        assert!(refused > DAMAGED / 20, "{kind}: {refused} refused");
    }
}
