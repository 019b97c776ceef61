//! BMP files with several pixels in a byte.

use super::*;

/// An uncompressed BMP of this many bits a pixel, rows from the bottom up, with the index of each pixel.
fn packed(bits: usize, size: (usize, usize), indices: &[u8], colours: &[[u8; 3]]) -> Vec<u8> {
    let (width, height) = size;
    let start = 54 + 4 * colours.len();
    let mut bmp = b"BM".to_vec();
    let header = [40, width, height, 1 | bits << 16, 0, 0, 2835, 2835, colours.len(), 0];
    for number in [0, 0, start].into_iter().chain(header) {
        bmp.extend((number as u32).to_le_bytes());
    }
    bmp.extend(colours.iter().flat_map(|&[red, green, blue]| [blue, green, red, 0]));
    for row in indices.chunks(width).rev() {
        let mut bytes = vec![0_u8; (width * bits).div_ceil(32) * 4];
        for (column, index) in row.iter().enumerate() {
            bytes[column * bits / 8] |= index << (8 - bits - column * bits % 8);
        }
        bmp.extend(bytes);
    }
    bmp
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
