//! BMP files of all depths, masks and headers.

use super::*;

/// An uncompressed BMP of this many bits a pixel, with these rows from the bottom up, each padded to whole words.
fn file(bits: usize, size: (usize, usize), colours: &[[u8; 3]], rows: &[u8]) -> Vec<u8> {
    let (width, height) = size;
    let start = 54 + 4 * colours.len();
    let header = [40, width, height, 1 | bits << 16, 0, 0, 2835, 2835, colours.len(), 0];
    let numbers = [0, 0, start].into_iter().chain(header);
    let mut bmp = b"BM".to_vec();
    bmp.extend(numbers.flat_map(|number| (number as u32).to_le_bytes()));
    bmp.extend(colours.iter().flat_map(|&[red, green, blue]| [blue, green, red, 0]));
    bmp.extend(rows);
    bmp
}

/// An uncompressed BMP with the index of each pixel.
fn packed(bits: usize, size: (usize, usize), indices: &[u8], colours: &[[u8; 3]]) -> Vec<u8> {
    let mut rows = Vec::new();
    for row in indices.chunks(size.0).rev() {
        let mut bytes = vec![0_u8; (size.0 * bits).div_ceil(32) * 4];
        for (column, index) in row.iter().enumerate() {
            bytes[column * bits / 8] |= index << (8 - bits - column * bits % 8);
        }
        rows.extend(bytes);
    }
    file(bits, size, colours, &rows)
}

#[test]
fn packed_pixels_are_decoded_at_any_width() {
    for bits in [1, 4] {
        let colours: Vec<[u8; 3]> = (0..1_u8 << bits).map(|index| [index * 15, 255 - index, index]).collect();
        for width in 1..70 {
            let indices: Vec<u8> = (0..width * 3).map(|at| (at * at % 7 % (1 << bits)) as u8).collect();
            let bmp = packed(bits, (width, 3), &indices, &colours);
            let (shape, image) = bytes(&bmp, &json!({ "layout": "hwc" }));
            assert_eq!(shape, [3, width as u32, 3]);
            let expected: Vec<u8> = indices.iter().flat_map(|&index| colours[usize::from(index)]).collect();
            assert_eq!(image, expected, "{bits} bits, {width} pixels");
        }
    }
}

#[test]
fn pixels_of_three_bytes_are_decoded_at_any_size() {
    for (width, height) in [(1, 1), (1, 2), (2, 1), (3, 2), (5, 4)] {
        let pixels: Vec<u8> = (0..width * height * 3).map(|at| (at * 37 % 251) as u8).collect();
        let mut rows = Vec::new();
        for row in pixels.chunks(width * 3).rev() {
            rows.extend(row.as_chunks().0.iter().flat_map(|&[red, green, blue]| [blue, green, red]));
            rows.resize(rows.len().next_multiple_of(4), 0);
        }
        let (shape, image) = bytes(&file(24, (width, height), &[], &rows), &json!({ "layout": "hwc" }));
        assert_eq!((shape, image), (vec![height as u32, width as u32, 3], pixels));
    }
}

/// A BMP with a header of this length, and these masks in it or behind it.
fn masked(
    header: u32,
    bits: u16,
    [width, height]: [i32; 2],
    masks: Option<[u32; 3]>,
    rows: &[u8],
) -> Vec<u8> {
    let mut info = vec![header, width as u32, height as u32, 1 | u32::from(bits) << 16];
    info.extend([if masks.is_some() { 3 } else { 0 }, 0, 0, 0, 0, 0]);
    if header > 40 {
        info.extend(masks.unwrap_or_default());
        info.resize(header as usize / 4, 0);
    } else {
        info.extend(masks.into_iter().flatten());
    }
    let numbers = [0, 0, 14 + 4 * info.len() as u32].into_iter().chain(info);
    let mut bmp = b"BM".to_vec();
    bmp.extend(numbers.flat_map(u32::to_le_bytes));
    bmp.extend(rows);
    bmp
}

#[test]
fn pixels_of_two_bytes_are_decoded_at_any_width_with_any_header() {
    const HEIGHT: usize = 3;
    let scaled = |value: usize, most: usize| (value * 255 / most) as u8;
    for (masks, green) in [(None, 31), (Some([0x7c00, 0x3e0, 0x1f]), 31), (Some([0xf800, 0x7e0, 0x1f]), 63)] {
        for (header, is_down, width) in (1..20_usize).flat_map(|width| {
            [40, 52, 56, 64, 108, 124]
                .into_iter()
                .flat_map(move |header| [(header, false, width), (header, true, width)])
        }) {
            // Each pixel is another number, up to the largest.
            let number = |column: usize, row: usize| (column * 7919 + row * 30_011 + 32_768) % 65_536;
            let mut rows = Vec::new();
            let mut expected = Vec::new();
            for row in 0..HEIGHT {
                let stored = if is_down { row } else { HEIGHT - 1 - row };
                rows.extend((0..width).flat_map(|column| (number(column, stored) as u16).to_le_bytes()));
                rows.resize(rows.len().next_multiple_of(4), 0xaa);
                expected.extend((0..width).flat_map(|column| {
                    let pixel = number(column, row);
                    let red = pixel / (32 * (green + 1)) % 32;
                    [scaled(red, 31), scaled(pixel / 32 % (green + 1), green), scaled(pixel % 32, 31)]
                }));
            }
            let height = if is_down { -(HEIGHT as i32) } else { HEIGHT as i32 };
            let bmp = masked(header, 16, [width as i32, height], masks, &rows);
            let (shape, image) = bytes(&bmp, &json!({ "layout": "hwc" }));
            assert_eq!(shape, [HEIGHT as u32, width as u32, 3]);
            assert_eq!(image, expected, "{masks:?}, header of {header}, {width} pixels, {is_down}");
        }
    }
}

#[test]
fn masks_of_whole_bytes_are_followed_and_others_are_refused_by_name() {
    let pixel = |bits: u16, masks: [u32; 3]| {
        let bmp = masked(56, bits, [1, 1], Some(masks), &[1, 2, 3, 4]);
        item(&bmp, 0, &json!({})).map(|item| item.tensor::<u8>("image").unwrap().as_slice().to_vec())
    };
    for (bits, masks, colour) in [
        (32, [0xff_0000, 0xff00, 0xff], [3, 2, 1]),
        (32, [0xff, 0xff00, 0xff_0000], [1, 2, 3]),
        (32, [0xff00_0000, 0xff_0000, 0xff00], [4, 3, 2]),
        (32, [0xff00_0000, 0xff00, 0xff], [4, 2, 1]),
        (32, [0, 0, 0], [3, 2, 1]),
        (24, [0xff_0000, 0xff00, 0xff], [3, 2, 1]),
    ] {
        assert_eq!(pixel(bits, masks).unwrap(), colour, "{bits} bits, {masks:x?}");
    }
    for (bits, masks, shown) in [
        (16, [0xf00, 0xf0, 0xf], "f00, f0 and f of 16 bits"),
        (16, [0x1f, 0x7e0, 0xf800], "1f, 7e0 and f800 of 16 bits"),
        (16, [0, 0, 0], "0, 0 and 0 of 16 bits"),
        (24, [0xff00_0000, 0xff00, 0xff], "ff000000, ff00 and ff of 24 bits"),
        (32, [0x3ff0_0000, 0xf_fc00, 0x3ff], "3ff00000, ffc00 and 3ff of 32 bits"),
        (32, [0xff, 0xff, 0xff], "ff, ff and ff of 32 bits"),
    ] {
        let message = pixel(bits, masks).unwrap_err();
        let start = "the kind of the BMP is not supported: the masks of red, green and blue are ";
        assert!(message.message().starts_with(&format!("{start}{shown};")), "{}", message.message());
    }
}

/// A BMP of 5 x 2 pixels with run lengths of 8 bits, whose colours are greys.
fn runs(rows: &[u8]) -> Vec<u8> {
    let greys: Vec<[u8; 3]> = (0..=255).map(|grey| [grey; 3]).collect();
    let mut bmp = file(8, (5, 2), &greys, rows);
    bmp[30] = 1;
    bmp
}

#[test]
fn run_lengths_are_followed_to_their_end() {
    let greys = |bmp: &[u8]| -> Vec<u8> {
        bytes(bmp, &json!({ "layout": "hwc" })).1.into_iter().step_by(3).collect()
    };
    // Runs that exceed the row, single indices with padding, a step, and the end of the bitmap before its last pixel.
    assert_eq!(greys(&runs(&[9, 7, 0, 0, 0, 3, 1, 2, 3, 0, 1, 4, 0, 1])), [1, 2, 3, 4, 0, 7, 7, 7, 7, 7]);
    assert_eq!(greys(&runs(&[2, 7, 0, 2, 1, 1, 1, 9, 0, 1])), [0, 0, 0, 9, 0, 7, 7, 0, 0, 0]);
    for cut in [&[5, 7, 0, 0, 2, 1][..], &[5, 7, 0, 0, 0, 5, 1, 2], &[5, 7, 0, 2, 1]] {
        let error = item(&runs(cut), 0, &json!({})).unwrap_err();
        assert_eq!(error.message(), "the BMP is damaged: it is truncated");
    }
}

#[test]
fn a_bmp_whose_header_cannot_be_right_is_refused_before_memory_is_taken() {
    let refused = |bmp: &[u8]| item(bmp, 0, &json!({})).unwrap_err().message().to_owned();
    let plain = masked(40, 16, [2, 2], None, &[0; 8]);
    let with = |at: usize, bytes: &[u8]| {
        let mut bmp = plain.clone();
        bmp[at..at + bytes.len()].copy_from_slice(bytes);
        refused(&bmp)
    };
    assert_eq!(refused(&plain[..40]), "the BMP is damaged: it ends in its header");
    assert_eq!(refused(&plain[..61]), "the BMP is damaged: it is truncated");
    assert_eq!(
        with(14, &[41]),
        "the kind of the BMP is not supported: its header has 41 bytes; known are 12, 40, 52, 56, 64, 108 and 124"
    );
    assert_eq!(
        with(28, &[12]),
        "the kind of the BMP is not supported: 12 bits a pixel; known are 1, 2, 4, 8, 16, 24 and 32"
    );
    assert_eq!(
        with(30, &[4]),
        "the kind of the BMP is not supported: its compression is 4 (JPEG), with 16 bits a pixel"
    );
    let size = [0, 0, 1, 0, 0, 0, 1, 0];
    assert_eq!(
        with(18, &size),
        "the image is too large: 65536 x 65536 pixels, more than `max_pixels`, 50000000"
    );
}
