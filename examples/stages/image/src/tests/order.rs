//! Resizing of mirrored and turned images: as after the image was mirrored or turned.

use super::*;
use crate::step::Resizing;

#[test]
fn an_image_is_resized_after_it_is_turned_upright() {
    for interpolation in ["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"] {
        let resize = json!({ "Resize": { "size": [31, 17], "interpolation": interpolation } });
        for number in 2..9 {
            let file = file(&format!("orientation-{number}.jpg"));
            let (_, made) = bytes(&file, &json!({ "ops": [resize], "layout": "hwc" }));
            let upright = seen(
                &opened(&file).unwrap(),
                &View::whole(opened(&file).unwrap().shown()),
                &settings(&json!({})),
            );
            let size = Size { width: 17, height: 31 };
            let step = Step::Resize(Resizing {
                size,
                interpolation: serde_json::from_value(json!(interpolation)).unwrap(),
                antialias: true,
            });
            let (most, _) = differences(&made, &crate::apply::after(upright.unwrap(), &step).unwrap().pixels);
            assert!(most <= 1, "{interpolation}, orientation {number}: {most}");
        }
    }
}
