//! Inception v3 for images of 299 x 299, as in torchvision, with its auxiliary classifier.

use super::Part;
use super::images::{linear, normalised};

/// Parts of one side of a square, below one name.
struct Block {
    name: &'static str,
    side: usize,
    parts: Vec<Part>,
}

impl Block {
    fn new(name: &'static str, side: usize) -> Self {
        Self { name, side, parts: Vec::new() }
    }

    /// A convolution of inputs to outputs with a kernel of height and width.
    fn add(mut self, inputs: usize, outputs: usize, kernel: [usize; 2]) -> Self {
        let name = format!("{}.{}", self.name, self.parts.len());
        self.parts.push(normalised(&name, [inputs, outputs], kernel, self.side * self.side));
        self
    }

    /// The same, and from now on results have another side.
    fn add_to(mut self, side: usize, inputs: usize, outputs: usize, kernel: [usize; 2]) -> Self {
        self.side = side;
        self.add(inputs, outputs, kernel)
    }
}

const ONE: [usize; 2] = [1, 1];
const THREE: [usize; 2] = [3, 3];
const FIVE: [usize; 2] = [5, 5];

pub fn inception3() -> Vec<Part> {
    let stem = Block::new("stem", 149)
        .add(3, 32, THREE)
        .add_to(147, 32, 32, THREE)
        .add(32, 64, THREE)
        .add_to(73, 64, 80, ONE)
        .add_to(71, 80, 192, THREE);
    let blocks = [
        stem,
        wide("Mixed_5b", 192, 32),
        wide("Mixed_5c", 256, 64),
        wide("Mixed_5d", 288, 64),
        to_17(),
        long("Mixed_6b", 128),
        long("Mixed_6c", 160),
        long("Mixed_6d", 160),
        long("Mixed_6e", 192),
        Block::new("AuxLogits", 5).add(768, 128, ONE).add_to(1, 128, 768, FIVE),
    ];
    let last = [to_8(), split("Mixed_7b", 1280), split("Mixed_7c", 2048)];
    let mut parts: Vec<Part> = blocks.into_iter().flat_map(|block| block.parts).collect();
    parts.push(linear("AuxLogits.fc", 768, 1000));
    parts.extend(last.into_iter().flat_map(|block| block.parts));
    parts.push(linear("fc", 2048, 1000));
    parts
}

/// The paper's figure 5.
fn wide(name: &'static str, inputs: usize, pooled: usize) -> Block {
    Block::new(name, 35)
        .add(inputs, 64, ONE)
        .add(inputs, 48, ONE)
        .add(48, 64, FIVE)
        .add(inputs, 64, ONE)
        .add(64, 96, THREE)
        .add(96, 96, THREE)
        .add(inputs, pooled, ONE)
}

fn to_17() -> Block {
    Block::new("Mixed_6a", 17)
        .add(288, 384, THREE)
        .add_to(35, 288, 64, ONE)
        .add(64, 96, THREE)
        .add_to(17, 96, 96, THREE)
}

/// The paper's figure 6.
fn long(name: &'static str, width: usize) -> Block {
    Block::new(name, 17)
        .add(768, 192, ONE)
        .add(768, width, ONE)
        .add(width, width, [1, 7])
        .add(width, 192, [7, 1])
        .add(768, width, ONE)
        .add(width, width, [7, 1])
        .add(width, width, [1, 7])
        .add(width, width, [7, 1])
        .add(width, 192, [1, 7])
        .add(768, 192, ONE)
}

fn to_8() -> Block {
    Block::new("Mixed_7a", 17)
        .add(768, 192, ONE)
        .add_to(8, 192, 320, THREE)
        .add_to(17, 768, 192, ONE)
        .add(192, 192, [1, 7])
        .add(192, 192, [7, 1])
        .add_to(8, 192, 192, THREE)
}

/// The paper's figure 7.
fn split(name: &'static str, inputs: usize) -> Block {
    Block::new(name, 8)
        .add(inputs, 320, ONE)
        .add(inputs, 384, ONE)
        .add(384, 384, [1, 3])
        .add(384, 384, [3, 1])
        .add(inputs, 448, ONE)
        .add(448, 384, THREE)
        .add(384, 384, [1, 3])
        .add(384, 384, [3, 1])
        .add(inputs, 192, ONE)
}
