//! ResNets with bottlenecks, as in torchvision (v1.5: the 3 x 3 convolution has the stride).

use super::Part;
use super::images::{linear, normalised};

/// A ResNet for images of 224 x 224 with so many blocks in each stage.
pub fn resnet(blocks: [usize; 4]) -> Vec<Part> {
    let mut parts = vec![normalised("conv1", [3, 64], [7, 7], 112 * 112)];
    let (mut inputs, mut side) = (64, 56);
    for (stage, (count, width)) in blocks.into_iter().zip([64, 128, 256, 512]).enumerate() {
        for number in 0..count {
            let name = format!("layer{}.{number}", stage + 1);
            let side_after = if stage > 0 && number == 0 { side / 2 } else { side };
            parts.extend(bottleneck(&name, inputs, width, [side * side, side_after * side_after]));
            (inputs, side) = (4 * width, side_after);
        }
    }
    parts.push(linear("fc", inputs, 1000));
    parts
}

/// A block; a change of channels needs a convolution on the way around it.
fn bottleneck(name: &str, inputs: usize, width: usize, pixels: [usize; 2]) -> Vec<Part> {
    let part = |layer: &str, shape, kernel, pixels| {
        normalised(&format!("{name}.{layer}"), shape, [kernel; 2], pixels)
    };
    let [before, after] = pixels;
    let mut parts = vec![
        part("conv1", [inputs, width], 1, before),
        part("conv2", [width, width], 3, after),
        part("conv3", [width, 4 * width], 1, after),
    ];
    if inputs != 4 * width {
        parts.push(part("downsample", [inputs, 4 * width], 1, after));
    }
    parts
}
