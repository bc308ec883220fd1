//! Transformers, as in the package transformers: work is that of one token.
//!
//! An embedding is looked up, which is no work. A head that shares the embedding's parameters works
//! in the end, but their gradient is ready with the embedding's.

use super::Part;

/// Tokens of an example, which attention looks at: SQuAD's for BERT, GPT-2's context, and what
/// torchtitan trains Llama with.
const BERT_TOKENS: usize = 384;
const GPT2_TOKENS: usize = 1024;
const LLAMA_TOKENS: usize = 8192;

fn part(name: String, tensors: &[usize], work: usize) -> Part {
    Part { name, tensors: tensors.to_vec(), work: work as f64 }
}

/// Attention's products of queries with keys, and of the result with values: no parameters.
fn attention(layer: usize, tokens: usize, width: usize) -> Part {
    part(format!("layer.{layer}.attention"), &[], 2 * tokens * width)
}

/// BERT-large with its pooler, which sees one token.
pub fn bert_large() -> Vec<Part> {
    let (d, inner) = (1024, 4096);
    let mut parts = vec![part("embeddings".into(), &[30_522 * d, 512 * d, 2 * d, d, d], 0)];
    for layer in 0..24 {
        let dense = |name: &str, inputs: usize, outputs: usize, norm: &[usize]| {
            let tensors = [&[inputs * outputs, outputs], norm].concat();
            part(format!("layer.{layer}.{name}"), &tensors, inputs * outputs)
        };
        parts.push(dense("query", d, d, &[]));
        parts.push(dense("key", d, d, &[]));
        parts.push(dense("value", d, d, &[]));
        parts.push(attention(layer, BERT_TOKENS, d));
        parts.push(dense("attention.output", d, d, &[d, d]));
        parts.push(dense("intermediate", d, inner, &[]));
        parts.push(dense("output", inner, d, &[d, d]));
    }
    parts.push(part("pooler".into(), &[d * d, d], d * d / BERT_TOKENS));
    parts
}

/// GPT-2 of a width and a number of layers.
pub fn gpt2(d: usize, layers: usize) -> Vec<Part> {
    let mut parts =
        vec![part("wte".into(), &[50_257 * d], 0), part("wpe".into(), &[GPT2_TOKENS * d], 0)];
    for layer in 0..layers {
        let dense = |name: &str, norm: &[usize], inputs: usize, outputs: usize| {
            let tensors = [norm, &[inputs * outputs, outputs]].concat();
            part(format!("layer.{layer}.{name}"), &tensors, inputs * outputs)
        };
        parts.push(dense("c_attn", &[d, d], d, 3 * d));
        parts.push(attention(layer, GPT2_TOKENS, d));
        parts.push(dense("attn.c_proj", &[], d, d));
        parts.push(dense("c_fc", &[d, d], d, 4 * d));
        parts.push(dense("mlp.c_proj", &[], 4 * d, d));
    }
    parts.push(part("ln_f".into(), &[d, d], 0));
    parts.push(part("head".into(), &[], 50_257 * d));
    parts
}

/// The shape of a Llama.
pub struct Llama {
    width: usize,
    layers: usize,
    /// Width of keys and of values.
    keys: usize,
    inner: usize,
    /// Whether the head shares the embedding's parameters.
    is_tied: bool,
}

/// Llama 3.2 1B.
pub const LLAMA_1B: Llama =
    Llama { width: 2048, layers: 16, keys: 512, inner: 8192, is_tied: true };
/// Llama 3.1 8B.
pub const LLAMA_8B: Llama =
    Llama { width: 4096, layers: 32, keys: 1024, inner: 14_336, is_tied: false };

pub fn llama(shape: &Llama) -> Vec<Part> {
    let &Llama { width: d, layers, keys, inner, is_tied } = shape;
    let embedding = 128_256 * d;
    let mut parts = vec![part("embed_tokens".into(), &[embedding], 0)];
    for layer in 0..layers {
        let dense = |name: &str, norm: &[usize], weights: usize| {
            part(format!("layer.{layer}.{name}"), &[norm, &[weights]].concat(), weights)
        };
        parts.push(dense("q_proj", &[d], d * d));
        parts.push(dense("k_proj", &[], d * keys));
        parts.push(dense("v_proj", &[], d * keys));
        parts.push(attention(layer, LLAMA_TOKENS, d));
        parts.push(dense("o_proj", &[], d * d));
        parts.push(dense("gate_proj", &[d], d * inner));
        parts.push(dense("up_proj", &[], d * inner));
        parts.push(dense("down_proj", &[], inner * d));
    }
    parts.push(part("norm".into(), &[d], 0));
    let head: &[usize] = if is_tied { &[] } else { &[embedding] };
    parts.push(part("lm_head".into(), head, embedding));
    parts
}
