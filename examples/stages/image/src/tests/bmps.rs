//! BMP files with several pixels in a byte, or three bytes a pixel.

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
