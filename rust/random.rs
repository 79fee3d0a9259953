//! Random words that are a pure function of seed, step, operator and position.
//!
//! The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw: Parallel random numbers, as easy as 1, 2, 3; 2011): a
//! bijection of a counter of four words under a key of two. Its arguments are used as they stand, so that no two words
//! of a run share them:
//!
//! | words | hold |
//! |---|---|
//! | key 0, 1 | the seed, low half first |
//! | counter 0, 1 | the number of the block of four words, low half first |
//! | counter 2 | the step |
//! | counter 3 | the operator |
//!
//! Word `n` of an operator in one step is word `n % 4` of block `n / 4`. A [`Window`] draws the words of a part of a
//! tensor without those around it.

use thiserror::Error;

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Philox4x32-10.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let first = u64::from(counter[0]) * u64::from(MULTIPLIERS[0]);
        let second = u64::from(counter[2]) * u64::from(MULTIPLIERS[1]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

/// The words of one operator in one step.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Seed of the run.
    pub seed: u64,
    /// Number of the step.
    pub step: u32,
    /// Number of the operator in its graph.
    pub operator: u32,
}

impl Stream {
    /// The four words of a block, as bytes.
    fn block(&self, number: u64) -> [u8; 16] {
        let counter = [number as u32, (number >> 32) as u32, self.step, self.operator];
        let words = philox(counter, [self.seed as u32, (self.seed >> 32) as u32]);
        let mut bytes = [0; 16];
        for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Writes the words from `first` on into `out`.
    fn fill(&self, first: u64, out: &mut [u8]) {
        let skipped = (first % 4) as usize * 4;
        let (ahead, rest) = out.split_at_mut(out.len().min((16 - skipped) % 16));
        if !ahead.is_empty() {
            ahead.copy_from_slice(&self.block(first / 4)[skipped..][..ahead.len()]);
        }
        let (blocks, behind) = rest.as_chunks_mut();
        let mut number = first.div_ceil(4);
        for block in blocks {
            *block = self.block(number);
            number += 1;
        }
        behind.copy_from_slice(&self.block(number)[..behind.len()]);
    }
}

/// A box of a tensor: along each dimension `lengths` units from `starts` on, of `sizes`.
#[derive(Clone, Debug)]
pub struct Window {
    sizes: Vec<u64>,
    starts: Vec<u64>,
    lengths: Vec<u64>,
    count: usize,
}

/// A window that is not part of a tensor.
#[derive(Debug, Error)]
pub enum WindowError {
    /// The lists are of different lengths.
    #[error("the window has {sizes} sizes, {starts} starts and {lengths} lengths, expected as many of each")]
    Ranks {
        /// Entries of each list.
        sizes: usize,
        /// As above.
        starts: usize,
        /// As above.
        lengths: usize,
    },
    /// The box reaches beyond the tensor.
    #[error("dimension {dimension} of the window has {length} units from {start} on, but the tensor has {size}")]
    Outside {
        /// The dimension.
        dimension: usize,
        /// Its size.
        size: u64,
        /// Where the box starts.
        start: u64,
        /// What it holds.
        length: u64,
    },
    /// Positions do not fit.
    #[error("a tensor of sizes {sizes:?} has more positions than 64 bits can count")]
    TooLarge {
        /// Sizes of the tensor.
        sizes: Vec<u64>,
    },
}

impl Window {
    /// A box of a tensor of `sizes`.
    ///
    /// # Errors
    ///
    /// The box is not part of the tensor, or the tensor's positions do not fit into 64 bits.
    pub fn new(sizes: Vec<u64>, starts: Vec<u64>, lengths: Vec<u64>) -> Result<Self, WindowError> {
        if sizes.len() != starts.len() || sizes.len() != lengths.len() {
            let (sizes, starts, lengths) = (sizes.len(), starts.len(), lengths.len());
            return Err(WindowError::Ranks { sizes, starts, lengths });
        }
        for (dimension, ((&size, &start), &length)) in sizes.iter().zip(&starts).zip(&lengths).enumerate() {
            if start.checked_add(length).is_none_or(|end| end > size) {
                return Err(WindowError::Outside {
                    dimension,
                    size,
                    start,
                    length,
                });
            }
        }
        let positions = sizes
            .iter()
            .try_fold(1u64, |product, &size| product.checked_mul(size.max(1)));
        let count = lengths.iter().product::<u64>();
        match (positions, usize::try_from(count)) {
            (Some(_), Ok(count)) => Ok(Self {
                sizes,
                starts,
                lengths,
                count,
            }),
            _ => Err(WindowError::TooLarge { sizes }),
        }
    }

    /// Words in the box.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Writes the words at the box's positions, in order, into `out`: four bytes for each.
    pub fn draw(&self, stream: &Stream, out: &mut [u8]) {
        assert_eq!(out.len(), self.count * 4, "four bytes for each word");
        if self.count == 0 {
            return;
        }
        // Dimensions that are taken whole make one run with the one before them.
        let rank = self.sizes.len();
        let whole = (0..rank)
            .rev()
            .take_while(|&d| self.lengths[d] == self.sizes[d])
            .count();
        let outer = rank.saturating_sub(whole + 1);
        let run = self.lengths[outer..].iter().product::<u64>() as usize;
        let strides: Vec<u64> = (0..rank).map(|d| self.sizes[d + 1..].iter().product()).collect();
        let mut position: u64 = self
            .starts
            .iter()
            .zip(&strides)
            .map(|(start, stride)| start * stride)
            .sum();
        let mut at = vec![0; outer];
        for piece in out.chunks_exact_mut(run * 4) {
            stream.fill(position, piece);
            for dimension in (0..outer).rev() {
                at[dimension] += 1;
                position += strides[dimension];
                if at[dimension] < self.lengths[dimension] {
                    break;
                }
                position -= self.lengths[dimension] * strides[dimension];
                at[dimension] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The published known answers for ten rounds: counter, key, and what they give (Random123, `kat_vectors`).
    #[test]
    fn known_answers() {
        let vectors: [([u32; 4], [u32; 2], [u32; 4]); 3] = [
            ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([!0; 4], [!0; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xa4093822, 0x299f31d0],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (counter, key, expected) in vectors {
            assert_eq!(philox(counter, key), expected);
        }
    }

    #[test]
    fn the_stream_is_philox_of_what_it_is_made_of() {
        let stream = Stream {
            seed: 0x299f31d0_a4093822,
            step: 0x13198a2e,
            operator: 0x03707344,
        };
        let words = [0xd16cfe09u32, 0x94fdcceb, 0x5001e420, 0x24126ea1];
        assert_eq!(
            stream.block(0x85a308d3_243f6a88),
            *words.map(u32::to_ne_bytes).as_flattened()
        );
    }

    fn drawn(stream: &Stream, sizes: Vec<u64>, starts: Vec<u64>, lengths: Vec<u64>) -> Vec<u32> {
        let window = Window::new(sizes, starts, lengths).unwrap();
        let mut bytes = vec![0; window.count() * 4];
        window.draw(stream, &mut bytes);
        bytes
            .chunks_exact(4)
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
            .collect()
    }

    /// The word at one position, block by block.
    fn word(stream: &Stream, position: u64) -> u32 {
        let block = stream.block(position / 4);
        u32::from_ne_bytes(block[(position % 4) as usize * 4..][..4].try_into().unwrap())
    }

    proptest! {
        #[test]
        fn a_window_holds_the_words_of_its_positions(
            dims in prop::collection::vec((0u64..9, 0u64..9, 0u64..3), 0..5), inner in 0u64..150, seed: u64, step: u32,
            operator: u32,
        ) {
            let stream = Stream { seed, step, operator };
            let mut sizes: Vec<u64> = dims.iter().map(|(start, length, after)| start + length + after).collect();
            let mut starts: Vec<u64> = dims.iter().map(|&(start, ..)| start).collect();
            let mut lengths: Vec<u64> = dims.iter().map(|&(_, length, _)| length).collect();
            sizes.push(inner + 3);
            starts.push(seed % 4);
            lengths.push((inner + 3).saturating_sub(seed % 4 + seed % 2));
            let mut expected = Vec::new();
            for number in 0..lengths.iter().product::<u64>() {
                let (mut rest, mut position, mut stride) = (number, 0, 1);
                for d in (0..sizes.len()).rev() {
                    position += (starts[d] + rest % lengths[d]) * stride;
                    rest /= lengths[d];
                    stride *= sizes[d];
                }
                expected.push(word(&stream, position));
            }
            prop_assert_eq!(drawn(&stream, sizes, starts, lengths), expected);
        }
    }

    #[test]
    fn wrong_windows_are_named() {
        let text = |sizes, starts, lengths| Window::new(sizes, starts, lengths).unwrap_err().to_string();
        assert!(text(vec![3], vec![], vec![3]).contains("1 sizes, 0 starts and 1 lengths"));
        assert!(text(vec![2, 3], vec![0, 1], vec![2, 3]).contains("dimension 1 of the window has 3 units from 1"));
        assert!(text(vec![2, 3], vec![0, u64::MAX], vec![2, 3]).contains("the tensor has 3"));
        assert!(text(vec![1 << 40, 1 << 40], vec![0, 0], vec![1, 1]).contains("more positions than 64 bits"));
    }
}
