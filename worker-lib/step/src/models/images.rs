//! Models of images that are chains of layers: AlexNet and VGG, as in torchvision.

use super::Part;

/// A convolution with or without a bias, whose result has so many pixels.
pub fn convolution(name: &str, shape: [usize; 2], kernel: [usize; 2], pixels: usize) -> Part {
    let weights = shape[0] * shape[1] * kernel[0] * kernel[1];
    Part { name: name.to_owned(), tensors: vec![weights], work: (weights * pixels) as f64 }
}

/// The same with a batch normalisation after it, whose work is next to none.
pub fn normalised(name: &str, shape: [usize; 2], kernel: [usize; 2], pixels: usize) -> Part {
    let mut part = convolution(name, shape, kernel, pixels);
    part.tensors.extend([shape[1]; 2]);
    part
}

/// A linear layer with a bias.
pub fn linear(name: &str, inputs: usize, outputs: usize) -> Part {
    let work = (inputs * outputs) as f64;
    Part { name: name.to_owned(), tensors: vec![inputs * outputs, outputs], work }
}

fn with_bias(name: &str, shape: [usize; 2], kernel: usize, side: usize) -> Part {
    let mut part = convolution(name, shape, [kernel; 2], side * side);
    part.tensors.push(shape[1]);
    part
}

/// AlexNet for images of 224 x 224.
pub fn alexnet() -> Vec<Part> {
    vec![
        with_bias("features.0", [3, 64], 11, 55),
        with_bias("features.3", [64, 192], 5, 27),
        with_bias("features.6", [192, 384], 3, 13),
        with_bias("features.8", [384, 256], 3, 13),
        with_bias("features.10", [256, 256], 3, 13),
        linear("classifier.1", 256 * 6 * 6, 4096),
        linear("classifier.4", 4096, 4096),
        linear("classifier.6", 4096, 1000),
    ]
}

/// VGG with so many convolutions before each of its poolings.
pub fn vgg(convolutions: &[usize; 5]) -> Vec<Part> {
    let (mut parts, mut inputs, mut side) = (Vec::new(), 3, 224);
    for (&count, outputs) in convolutions.iter().zip([64, 128, 256, 512, 512]) {
        for number in 0..count {
            let name = format!("features.{side}.{number}");
            parts.push(with_bias(&name, [inputs, outputs], 3, side));
            inputs = outputs;
        }
        side /= 2;
    }
    parts.push(linear("classifier.0", 512 * 7 * 7, 4096));
    parts.push(linear("classifier.3", 4096, 4096));
    parts.push(linear("classifier.6", 4096, 1000));
    parts
}
