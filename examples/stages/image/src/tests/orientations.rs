//! Places of the orientation in files.

use super::*;

const EXIF: &[u8] = b"Exif\0\0";
const XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
const XMP_TEXT: &[u8] = b"XML:com.adobe.xmp\0";
const PROFILE: &[u8] = b"Raw profile type exif\0";

/// EXIF metadata with this orientation.
fn exif(number: u8) -> Vec<u8> {
    [&b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0"[..], &[number], &[0; 6]].concat()
}

fn attribute(number: u8) -> Vec<u8> {
    format!("<rdf:Description tiff:Orientation=\"{number}\"/>").into_bytes()
}

fn element(number: u8) -> Vec<u8> {
    format!("<tiff:Orientation>{number}</tiff:Orientation>").into_bytes()
}

/// EXIF metadata in hexadecimal digits, as ImageMagick writes them.
fn profile(number: u8) -> Vec<u8> {
    let digits: Vec<String> = exif(number).iter().map(|byte| format!("{byte:02x}")).collect();
    let lines: Vec<String> = digits.chunks(10).map(|line| line.concat()).collect();
    format!("\nexif\n{:8}\n{}\n", exif(number).len(), lines.join("\n")).into_bytes()
}

/// A JPEG with these segments of the kind APP1 at this place.
fn jpeg(at: usize, segments: &[Vec<u8>]) -> Vec<u8> {
    let whole = file("baseline-420.jpg");
    let mut made = whole[..at].to_vec();
    for content in segments {
        made.extend([0xff, 0xe1]);
        made.extend((content.len() as u16 + 2).to_be_bytes());
        made.extend(content);
    }
    [made, whole[at..].to_vec()].concat()
}

/// A PNG with these chunks before the pixels, or behind them.
fn png(is_behind: bool, chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
    let whole = file("colour.png");
    let at = if is_behind { whole.len() - 12 } else { 33 };
    let mut made = whole[..at].to_vec();
    for (name, content) in chunks {
        made.extend((content.len() as u32).to_be_bytes());
        let body = [&name[..], content].concat();
        made.extend(&body);
        made.extend(damage::crc(&body).to_be_bytes());
    }
    [made, whole[at..].to_vec()].concat()
}

/// A WebP with these chunks, which its first chunk announces by the flags.
fn webp(flags: u8, chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
    let whole = file("lossless.webp");
    let chunk = |name: &[u8; 4], content: &[u8]| {
        let mut made = [&name[..], &(content.len() as u32).to_le_bytes(), content].concat();
        made.resize(made.len().next_multiple_of(2), 0);
        made
    };
    let mut body =
        [b"WEBP".to_vec(), chunk(b"VP8X", &[flags, 0, 0, 0, 60, 0, 0, 46, 0, 0]), whole[12..].to_vec()]
            .concat();
    for (name, content) in chunks {
        body.extend(chunk(name, content));
    }
    [&b"RIFF"[..], &(body.len() as u32).to_le_bytes(), &body].concat()
}

/// Text in the form of zlib, in blocks that are not compressed.
fn zlib(text: &[u8]) -> Vec<u8> {
    let mut made = vec![0x78, 0x01];
    let mut blocks = text.chunks(0xffff).peekable();
    while let Some(block) = blocks.next() {
        let length = block.len() as u16;
        made.push(u8::from(blocks.peek().is_none()));
        made.extend([length.to_le_bytes(), (!length).to_le_bytes()].concat());
        made.extend(block);
    }
    let (low, high) = text.iter().fold((1_u32, 0_u32), |(low, high), &byte| {
        let low = (low + u32::from(byte)) % 65_521;
        (low, (high + low) % 65_521)
    });
    made.extend((high << 16 | low).to_be_bytes());
    made
}

/// Pixels of an image of 61 x 47 pixels as they are shown with this orientation, with the shape.
fn shown(pixels: &[u8], number: u8) -> (Vec<u32>, Vec<u8>) {
    let (width, height) = (61, 47);
    let is_turned = (5..=8).contains(&number);
    let (out_width, out_height) = if is_turned { (height, width) } else { (width, height) };
    let mut made = Vec::new();
    for y in 0..out_height {
        for x in 0..out_width {
            let (right, bottom) = (out_width - 1 - x, out_height - 1 - y);
            let (column, row) = match number {
                2 => (right, y),
                3 => (right, bottom),
                4 => (x, bottom),
                5 => (y, x),
                6 => (y, right),
                7 => (bottom, right),
                8 => (bottom, x),
                _ => (x, y),
            };
            made.extend(&pixels[(row * width + column) * 3..][..3]);
        }
    }
    (vec![out_height as u32, out_width as u32, 3], made)
}

/// A file with an orientation in a certain place.
type Made = Box<dyn Fn(u8) -> Vec<u8>>;

#[test]
fn the_orientation_is_found_in_each_place_in_which_pillow_finds_it() {
    let international = |text: Vec<u8>| [XMP_TEXT, &[0, 0, 0, 0], &text].concat();
    let compressed = |text: Vec<u8>| [XMP_TEXT, &[1, 0, b'e', b'n', 0, 0], &zlib(&text)].concat();
    let whole = file("baseline-420.jpg");
    let scan = whole.windows(2).position(|pair| pair == [0xff, 0xda]).unwrap();
    let upright = |place: u8| [&exif(1)[..], &[place]].concat();
    let jpegs: Vec<Made> = vec![
        Box::new(|number| jpeg(2, &[[EXIF, &exif(number)].concat()])),
        Box::new(|number| jpeg(2, &[[EXIF, EXIF, &exif(number)].concat()])),
        Box::new(move |number| jpeg(scan, &[[EXIF, &exif(number)].concat()])),
        Box::new(|number| {
            jpeg(2, &[[EXIF, &exif(number)[..11]].concat(), [EXIF, &exif(number)[11..]].concat()])
        }),
        Box::new(|number| jpeg(2, &[[EXIF, &exif(number)].concat(), [EXIF, &exif(3)].concat()])),
        Box::new(|number| jpeg(2, &[[EXIF, &exif(number)].concat(), [XMP, &attribute(3)].concat()])),
        Box::new(|number| jpeg(2, &[[XMP, &attribute(number)].concat()])),
        Box::new(|number| jpeg(2, &[[XMP, &attribute(3)].concat(), [XMP, &element(number)].concat()])),
        Box::new(|number| jpeg(2, &[EXIF.to_vec(), [XMP, &element(number)].concat()])),
    ];
    let pngs: Vec<Made> = vec![
        Box::new(|number| png(false, &[(b"eXIf", exif(number))])),
        Box::new(|number| png(true, &[(b"eXIf", exif(number))])),
        Box::new(|number| png(false, &[(b"tEXt", [PROFILE, &profile(number)].concat())])),
        Box::new(|number| png(true, &[(b"zTXt", [PROFILE, &[0], &zlib(&profile(number))].concat())])),
        Box::new(|number| png(false, &[(b"tEXt", [PROFILE, &profile(3)].concat()), (b"eXIf", exif(number))])),
        Box::new(move |number| png(false, &[(b"iTXt", international(attribute(number)))])),
        Box::new(move |number| png(true, &[(b"iTXt", compressed(element(number)))])),
        Box::new(|number| png(false, &[(b"tEXt", [XMP_TEXT, &element(number)].concat())])),
    ];
    let webps: Vec<Made> = vec![
        Box::new(|number| webp(8, &[(b"EXIF", exif(number))])),
        Box::new(|number| webp(8, &[(b"ODD ", vec![1]), (b"EXIF", [EXIF, &exif(number)].concat())])),
        Box::new(|number| webp(4, &[(b"XMP ", attribute(number))])),
        Box::new(move |number| {
            webp(12, &[(b"XMP ", element(3)), (b"EXIF", exif(number)), (b"EXIF", upright(number))])
        }),
    ];
    let layout = json!({ "layout": "hwc" });
    for (base, places) in [("baseline-420.jpg", jpegs), ("colour.png", pngs), ("lossless.webp", webps)] {
        let stored = bytes(&file(base), &layout).1;
        for (at, made) in places.iter().enumerate() {
            for number in 0..=9 {
                assert_eq!(
                    bytes(&made(number), &layout),
                    shown(&stored, number),
                    "{base}, place {at}: {number}"
                );
            }
        }
    }
}

#[test]
fn metadata_in_other_places_or_of_other_kinds_change_nothing() {
    for (base, made) in [
        ("baseline-420.jpg", jpeg(2, &[[&b"exif\0\0"[..], &exif(6)].concat()])),
        ("baseline-420.jpg", jpeg(2, &[[EXIF, EXIF, EXIF, &exif(6)].concat()])),
        ("baseline-420.jpg", jpeg(2, &[[EXIF, &exif(1)].concat(), [XMP, &attribute(6)].concat()])),
        ("baseline-420.jpg", jpeg(2, &[[EXIF, &b"nothing"[..]].concat(), [XMP, &attribute(6)].concat()])),
        ("baseline-420.jpg", jpeg(2, &[[XMP, &attribute(6)].concat(), [XMP, &b"<x/>"[..]].concat()])),
        ("colour.png", png(false, &[(b"tEXt", [&b"Raw profile type APP1\0"[..], &profile(6)].concat())])),
        ("colour.png", png(false, &[(b"tEXt", [PROFILE, &b"\nexif\n4\nzz"[..]].concat())])),
        ("lossless.webp", webp(0, &[(b"EXIF", exif(6)), (b"XMP ", attribute(6))])),
        (
            "lossless.webp",
            [webp(8, &[]), [&b"EXIF"[..], &(exif(6).len() as u32).to_le_bytes(), &exif(6)].concat()].concat(),
        ),
    ] {
        assert_eq!(bytes(&made, &json!({})), bytes(&file(base), &json!({})), "{base}");
    }
}

#[test]
fn a_text_of_a_png_that_grows_too_large_is_refused() {
    let bomb = png(true, &[(b"zTXt", [PROFILE, &[0], &zlib(&vec![b'0'; 3 << 20])].concat())]);
    let message = item(&bomb, 0, &json!({})).unwrap_err().message().to_owned();
    assert!(
        message.starts_with("the PNG has more than 1024 KiB of text named `Raw profile type exif`, in which its orientation would be"),
        "{message}"
    );
    assert!(item(&bomb, 0, &json!({ "apply_exif_orientation": false })).is_ok());
}
